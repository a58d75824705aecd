"""Auxiliary tasks; importing this package registers every kind."""

from kstep.auxiliary import autoencoder, ceb, curl, ksl, ksl_transitions, proto

__all__ = ["autoencoder", "ceb", "curl", "ksl", "ksl_transitions", "proto"]
