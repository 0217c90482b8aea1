"""The command `deir`, also as `python -m deir`."""

from deir.runs.stopping import run_command


def main() -> None:
    run_command(_command)


def _command() -> None:
    from deir.cli import main as command  # here, so that Ctrl-C while it loads is told as Ctrl-C

    command()


if __name__ == "__main__":
    main()
