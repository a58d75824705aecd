"""The one exception that users are meant to read."""


class KstepError(Exception):
    """Something a user can put right; the message says what and how. Shown without a traceback."""
