"""The command `kstep`, also as `python -m kstep`. Signals are answered before anything is imported
that takes long, and no longer when all is done."""

import signal

from kstep.signals import answered


def main() -> None:
    try:
        with answered():
            from kstep import cli

            cli.main()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
