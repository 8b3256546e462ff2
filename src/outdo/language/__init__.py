"""Language models: policy, decoding engine, rewards and environments."""
