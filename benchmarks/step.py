"""Times training steps: pairs a second, useful FLOPs, memory, against PyTorch.

    python benchmarks/step.py biencoder [--peer] [--profile FOLDER]
    python benchmarks/step.py contextual [--peer] [--profile FOLDER]
    python benchmarks/step.py scaling --devices 1,2,4
    python benchmarks/step.py fsdp --devices 2
    python benchmarks/step.py memory

benchmarks/README.md says what each measures. `--toy` tries it on a CPU; MODE `--help`
lists a mode's options.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from checks import at_least, positive, probability, refuse, seconds, writable
from comparison import compare
from memory import measure_memory
from ours import DROPOUT, WIDTHS
from reporting import RESULTS
from scaling import PER_DEVICE, scale
from sharing import share
from texts import SHORTEST

from cdejax.runtime.compilation import enable_compilation_cache

MODES = {
    "biencoder": compare,
    "contextual": compare,
    "scaling": scale,
    "fsdp": share,
    "memory": measure_memory,
}
SIZES = {
    "biencoder": {"batch": 4096, "max_length": 256},
    "contextual": {"batch": 512, "max_length": 512},
    "memory": {"batch": 65_536, "max_length": 128},
    "scaling": {"batch": None, "max_length": None},
    "fsdp": {"batch": 1024, "max_length": 256},
}
TOY = {
    "biencoder": {"batch": 32, "max_length": 32},
    "contextual": {"batch": 16, "max_length": 32},
    "memory": {"batch": 64, "max_length": 16},
    "scaling": {"batch": 16, "max_length": 32},
    "fsdp": {"batch": 16, "max_length": 32},
}


def common() -> argparse.ArgumentParser:
    """Options of all modes."""
    group = argparse.ArgumentParser(add_help=False)
    add = group.add_argument
    add("--batch", type=positive, help="pairs a step (scaling: on each device)")
    add("--max-length", type=at_least(SHORTEST), help="tokens of a text at most")
    add("--rows", choices=("packed", "padded"), default="packed")
    add("--chunk-tokens", type=positive, help="default: as training chooses")
    add(
        "--keep",
        type=at_least(0),
        help="chunks whose activations are kept; default: the same (memory: 0)",
    )
    add("--seed", type=at_least(0), default=0)
    add("--compilation-cache", help="as `training.compilation_cache`")
    add("--out", type=writable, default=RESULTS, help="folder for JSON and picture")
    add("--toy", action="store_true", help="tiny sizes, to try the benchmark itself")
    return group


def trained() -> argparse.ArgumentParser:
    """Of modes that train for some steps, on texts of several lengths."""
    group = argparse.ArgumentParser(add_help=False)
    add = group.add_argument
    add("--lengths", help=".npy of two columns, or .jsonl with query and document")
    add("--max-widths", type=positive, default=WIDTHS)
    add("--steps", type=positive, default=10, help="measured after warm-up, 5 or more")
    return group


def contextual() -> argparse.ArgumentParser:
    """Of modes with a contextual encoder."""
    group = argparse.ArgumentParser(add_help=False)
    add = group.add_argument
    add("--context", type=positive, help="documents; default: 512, or the batch")
    add(
        "--sequence-dropout",
        type=probability,
        default=DROPOUT,
        help="of context documents",
    )
    return group


def compared() -> argparse.ArgumentParser:
    """Of modes that have a peer."""
    group = argparse.ArgumentParser(add_help=False)
    add = group.add_argument
    add("--peer", action="store_true", help="PyTorch's step, too")
    add("--peer-seconds", type=seconds, default=220.0)
    add("--profile", type=writable, help="folder for a trace of two more steps")
    return group


def several() -> argparse.ArgumentParser:
    """Of `scaling`."""
    group = argparse.ArgumentParser(add_help=False)
    group.add_argument("--devices", type=_counts, default=(1, 2, 4))
    group.add_argument("--kinds", type=_names, default=("biencoder", "contextual"))
    return group


def shared() -> argparse.ArgumentParser:
    """Of `fsdp`."""
    group = argparse.ArgumentParser(add_help=False)
    group.add_argument("--devices", type=positive, default=2)
    return group


OPTIONS = {
    "biencoder": (common, trained, compared),
    "contextual": (common, trained, contextual, compared),
    "scaling": (common, trained, contextual, several),
    "fsdp": (common, trained, shared),
    "memory": (common,),
}
"""What each mode has a use for; it refuses all else."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    root = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # Modes share code that reads these, whether they have a use for them or not.
    unused = {"context": None, "lengths": None}
    root.set_defaults(max_widths=WIDTHS, sequence_dropout=DROPOUT, **unused)
    modes = root.add_subparsers(dest="mode", required=True)
    for mode, groups in OPTIONS.items():
        modes.add_parser(mode, parents=[group() for group in groups])
    options, rest = root.parse_known_args(arguments)
    if rest:
        modes.choices[options.mode].error(
            f"{options.mode} has no use for {' '.join(rest)} here; options follow "
            f"the mode, and {options.mode} --help lists its own"
        )
    return options


def _counts(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if unknown := [name for name in names if name not in PER_DEVICE]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r}: give some of {', '.join(PER_DEVICE)}"
        )
    return names


def main() -> None:
    options = parse()
    sizes = (TOY if options.toy else SIZES)[options.mode]
    for name, value in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.usual = {**sizes, "seed": 0}
    options.file = "-".join(["step", options.mode, *["toy"] * options.toy])
    if "steps" in options and options.steps < 5 and not options.toy:
        refuse(f"--steps {options.steps}: at least 5 are needed")
    if options.compilation_cache:
        enable_compilation_cache(options.compilation_cache)
    MODES[options.mode](options)


if __name__ == "__main__":
    main()
