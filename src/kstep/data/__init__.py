"""What an agent learns from: the replay, the views made of it, the batches of one update."""
