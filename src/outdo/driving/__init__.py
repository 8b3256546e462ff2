"""Driving: a policy that writes its reasoning and a trajectory, in a simulator of its own."""
