"""Auxiliary tasks: losses that shape an encoder beside the reinforcement-learning loss."""
