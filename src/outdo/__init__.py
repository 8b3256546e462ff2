"""outdo: post-train a policy that already acts, so that it outdoes its demonstrations."""
