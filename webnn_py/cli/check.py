"""`webnn-py check`: list the unsupported nodes of a model on each device."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict, dataclass

from webnn_py.api.view.facts import facts_of
from webnn_py.cli.models import DEVICES, add_model, load, open_context
from webnn_py.cli.printing import print_json, print_table
from webnn_py.core.errors import NotSupportedError
from webnn_py.core.messages import printable

STATUS_UNSUPPORTED = 1
"""Exit status if a node is not supported on a device."""


@dataclass(frozen=True)
class Verdict:
    """The result of a check on one device.

    Attributes:
        device: "cpu" or "gpu".
        supported: Whether the model runs on the device; None if there is no such device.
        engines: Number of nodes by engine.
        reasons: Unsupported nodes with reasons.
    """

    device: str
    supported: bool | None
    engines: dict[str, int]
    reasons: tuple[str, ...]

    @property
    def answer(self) -> str:
        """Return the result in a word or two."""
        return {True: "supported", False: "not supported", None: "no device"}[self.supported]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser)
    parser.add_argument("--device", choices=DEVICES, help="only there, not on all devices")
    parser.add_argument("--engine", default="auto", help="an engine of the CPU that `info` lists")


def run(options: argparse.Namespace) -> int:
    """Print the results; return the exit status, 1 if a node is not supported."""
    devices = (options.device,) if options.device else DEVICES
    verdicts = [_verdict(options, device) for device in devices]
    if options.json:
        print_json({"model": str(options.model), "devices": [asdict(each) for each in verdicts]})
    else:
        rows = [(each.device, each.answer, _shown(each.engines)) for each in verdicts]
        print_table(options.model.name, ("device", "result", "operators by engine"), rows)
        for each in verdicts:
            if each.reasons:
                print("\n  ".join([f"{each.device}:", *map(printable, each.reasons)]))
    return STATUS_UNSUPPORTED if any(each.supported is False for each in verdicts) else 0


def _verdict(options: argparse.Namespace, device: str) -> Verdict:
    try:
        context = open_context(device, options.engine if device == "cpu" else "auto")
    except NotSupportedError as error:
        if device == "cpu":  # every machine has one, so the engine is missing
            raise
        return Verdict(device, None, {}, (str(error),))
    with context:
        try:
            loaded = load(options, context)
        except NotSupportedError as error:
            if isinstance(error.__cause__, ImportError):  # a package is missing, no operator
                raise
            first, *more = str(error).splitlines()
            return Verdict(device, False, {}, tuple(line.strip() for line in more or [first]))
        nodes = facts_of(loaded.graph, loaded.sizes).nodes
    return Verdict(device, True, dict(Counter(node.engine for node in nodes)), ())


def _shown(engines: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in engines.items())
