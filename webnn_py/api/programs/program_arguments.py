"""Validation of the arguments of a program run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webnn_py.api.session import Session
from webnn_py.api.signature import Arguments, Signature
from webnn_py.api.tensor import MLTensor
from webnn_py.core import convert
from webnn_py.core.errors import DataError
from webnn_py.core.messages import shown, type_name
from webnn_py.engines.initialization import BoundInputs
from webnn_py.engines.webgpu.program.plan import Argument

NOTHING_BOUND = BoundInputs()


def given_arguments(
    session: Session,
    wanted: Sequence[Argument],
    arguments: object,
    recorded: bool = False,
    private: bool = False,
) -> tuple[Signature, Arguments]:
    """Check the arguments of a run, and return them with their signature.

    The inputs of the signature are the supplied arguments that the program may read; its outputs
    are the written arguments.

    Args:
        session: Session of the context that runs the program.
        wanted: Arguments that the program declares.
        arguments: The user's mapping of arguments.
        recorded: As in `Signature.on_device`.
        private: As in `Signature.on_device`.
    """
    session.check_alive()
    read = convert.mapping({} if arguments is None else arguments, "arguments", DataError)
    names = [argument.name for argument in wanted]
    unknown = [name for name in read if name not in names]
    if unknown:
        known = ", ".join(map(shown, names[:32])) or "none"
        raise DataError(f"unknown argument {shown(unknown[0])}; this program has {known}")
    for argument in wanted:
        if argument.name not in read and (argument.required or recorded):
            raise DataError(
                f"argument {shown(argument.name)} is missing; expected {argument.descriptor}"
            )
    given = [argument for argument in wanted if argument.name in read]
    for argument in given if recorded else ():
        _check_recorded(session, argument, read[argument.name])
    signature = Signature(
        {a.name: a.descriptor for a in given if a.access != "write"},
        {a.name: a.descriptor for a in wanted if a.written},
        kinds=("argument", "argument"),
    )
    inputs, outputs = (
        {name: read[name] for name in members if name in read}
        for members in (signature.inputs, signature.outputs)
    )
    with session.queue.loss():
        return signature, signature.on_device(
            session, inputs, outputs, NOTHING_BOUND, {}, recorded, private
        )


def _check_recorded(session: Session, argument: Argument, value: object) -> None:
    """Check that a written argument of a recording lies on the device."""
    if argument.written and not isinstance(value, MLTensor) and not session.engine.takes(value):
        raise DataError(
            f"argument {shown(argument.name)}: got {type_name(value)}, expected a GPUBuffer, a"
            " binding of one or an MLTensor, as it is written"
        )


def by_name(signature: Signature, given: Arguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the initial contents of arguments and the destinations of written ones, by name."""
    return named_arguments(signature, given.hand_over(), given.outputs)


def named_arguments(
    signature: Signature, inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and outputs in the signature's order as dictionaries by name."""
    read, written = signature.inputs, signature.outputs
    return dict(zip(read, inputs, strict=True)), dict(zip(written, outputs, strict=True))
