"""The training room: runs any algorithm on any policy and environment."""
