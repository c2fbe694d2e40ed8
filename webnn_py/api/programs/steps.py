"""The parts of a program: arguments, buffers, and sequences of steps."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from webnn_py.api.compiled import compiled_of
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.core import convert
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import InvalidStateError, NotSupportedError, ValidationError
from webnn_py.core.messages import Suggesting, shown, type_name
from webnn_py.core.pickling import Unpicklable
from webnn_py.engines.webgpu.program.needs import Workgroup
from webnn_py.engines.webgpu.program.plan import MAX_DISPATCHES
from webnn_py.engines.webgpu.program.source import GraphStep, KernelStep, Slot, Source
from webnn_py.engines.webgpu.program.wgsl_interface import (
    EntryPoint,
    Module,
    features_of,
    read_module,
)
from webnn_py.ir import Descriptor
from webnn_py.ops.bind_sizes import fix

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.runtime.devices.device import Device

Workgroups = int | Sequence[int]


class Recorder:
    """Recording of one program.

    Args:
        session: Session of the context.
        device: GPU device of the context.

    Attributes:
        arguments: Slots of the arguments.
        sections: Steps and repeat count of each appended sequence; the lists of steps may grow.
    """

    def __init__(self, session: Session, device: Device) -> None:
        self.session = session
        self.arguments: list[Slot] = []
        self.sections: list[tuple[list[GraphStep | KernelStep], int]] = []
        self._offer = device.offer
        self._compiled = False

    def check_open(self) -> None:
        """Check that steps can still be added.

        Raises:
            InvalidStateError: The program is compiled, or is being compiled.
            ContextLostError: The context is lost.
        """
        self.session.check_alive()
        if self._compiled:
            raise InvalidStateError("this MLProgram is compiled; make a new one to change it")

    def append(self, sequence: object, repeat: object) -> None:
        """Append `repeat` runs of a sequence.

        Raises:
            ValidationError: `sequence` is not a sequence of this program, or `repeat` is not valid.
        """
        if not isinstance(sequence, MLProgramSequence):
            raise ValidationError(f"append: got {shown(sequence)}, expected an MLProgramSequence")
        if sequence._recorder is not self:
            raise ValidationError("append: the MLProgramSequence belongs to another program")
        count = convert.unsigned(repeat, "append: repeat")
        if not 1 <= count <= MAX_DISPATCHES:
            raise ValidationError(f"append: repeat {count}, expected 1..{MAX_DISPATCHES}")
        self.sections.append((sequence._steps, count))

    def source(self) -> Source:
        """Return the recorded program.

        Raises:
            ValidationError: There are no steps.
        """
        sections = [(tuple(steps), repeat) for steps, repeat in self.sections]
        source = Source(tuple(self.arguments), [part for part in sections if part[0]])
        if not source.sections:
            raise ValidationError("compile: the program has no steps; append a sequence with some")
        return source

    def close(self) -> None:
        """Close the recording to further steps."""
        self._compiled = True

    @contextlib.contextmanager
    def compiling(self) -> Iterator[Source]:
        """Close the recording and yield the program; reopen it if the block fails.

        Raises:
            ValidationError: There are no steps.
        """
        self.close()
        try:
            yield self.source()
        except BaseException:
            self._compiled = False
            raise

    def slot_of(self, resource: object, what: str) -> Slot:
        """Return the slot of an argument or buffer.

        Raises:
            ValidationError: `resource` is neither, or belongs to another program.
        """
        if not isinstance(resource, MLProgramBuffer):
            raise ValidationError(
                f"{what}: got {type_name(resource)}, expected what MLProgram.argument or"
                " MLProgram.buffer gave"
            )
        if resource._recorder is not self:
            raise ValidationError(f"{what}: {resource!r} belongs to another program")
        return resource._slot

    def check_device(
        self, what: str, features: Collection[str], workgroup: Workgroup, workgroups: Sequence[int]
    ) -> None:
        """Check that the context's device can run a kernel.

        Raises:
            NotSupportedError: The device lacks a feature.
            ValidationError: There are more or larger workgroups than the device can run.
        """
        limits = self._offer.limits
        lacking = [name for name in features if name not in self._offer.features]
        if lacking:
            raise NotSupportedError(f"{what}: the WGSL needs {lacking[0]}, which this device lacks")
        most = limits["maxComputeWorkgroupsPerDimension"]
        if max(workgroups) > most:
            raise ValidationError(
                f"{what}: workgroups {list(workgroups)}; this device's"
                f" max-compute-workgroups-per-dimension is {most}"
            )
        sizes = [1 if size is None else size for size in workgroup.size]
        bounds = [limits[f"maxComputeWorkgroupSize{axis}"] for axis in "XYZ"]
        total = limits["maxComputeInvocationsPerWorkgroup"]
        if math.prod(sizes) > total or any(s > b for s, b in zip(sizes, bounds, strict=True)):
            raise ValidationError(
                f"{what}: @workgroup_size {sizes}; this device allows {bounds}, and {total} in all"
            )
        room = limits["maxComputeWorkgroupStorageSize"]
        if workgroup.bytes > room:
            raise ValidationError(
                f"{what}: its workgroup variables take {workgroup.bytes} bytes; this device's"
                f" max-compute-workgroup-storage-size is {room}"
            )


class MLProgramBuffer(Unpicklable, Suggesting):
    """Argument or internal buffer of a program. Create it with `MLProgram`.

    Examples:
        ```python
        from webnn_py import MLProgram, ml

        program = MLProgram(ml.create_context_sync(device_type="gpu"))
        state = program.argument("state", "float32", [4])
        other = program.buffer("float32", [2, 2])
        print(state.name, state.data_type, state.shape)  # state float32 (4,)
        print(other.name, other.shape)  # None (2, 2)
        ```

    Source: webnn_py, spec/programs.md, "Arguments and buffers".
    """

    __slots__ = ("_recorder", "_slot")

    def __init__(self, recorder: Recorder, slot: Slot) -> None:
        self._recorder = recorder
        self._slot = slot

    @property
    def name(self) -> str | None:
        """Return the name of an argument, None for a buffer."""
        return self._slot.name

    @property
    def data_type(self) -> MLOperandDataType:
        """Return the name of the data type."""
        return self._slot.descriptor.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dimensions."""
        return self._slot.descriptor.shape

    def __repr__(self) -> str:
        what = "a buffer" if self.name is None else f"argument {shown(self.name)}"
        return f"<MLProgramBuffer {what} {self._slot.descriptor}>"


class MLProgramSequence(Unpicklable, Suggesting):
    """Sequence of steps of a program. Create it with `MLProgram.sequence`.

    The steps run one after the other, and each sees the writes of the steps before it.

    Examples:
        ```python
        import numpy as np

        from webnn_py import MLGraphBuilder, MLProgram, ml

        ctx = ml.create_context_sync(device_type="gpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", [4])
        double = b.build_sync({"y": b.add(x, x)})
        ADD_ONE = '''
        @group(0) @binding(0) var<storage, read_write> state: array<f32>;
        @compute @workgroup_size(4)
        fn main(@builtin(local_invocation_index) i: u32) { state[i] += 1.0; }
        '''
        program = MLProgram(ctx)
        state = program.argument("state", "float32", [4])
        other = program.buffer("float32", [4])
        step = program.sequence()
        step.dispatch(double, {"x": state}, {"y": other})
        step.dispatch(double, {"x": other}, {"y": state})
        step.compute(ADD_ONE, [state], workgroups=1)
        program.append(step)
        print(program.run_sync({"state": np.ones(4, np.float32)})["state"])  # [5. 5. 5. 5.]
        ```

    Source: webnn_py, spec/programs.md, "Steps".
    """

    __slots__ = ("_recorder", "_steps")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._steps: list[GraphStep | KernelStep] = []

    def dispatch(
        self,
        graph: MLGraph,
        inputs: Mapping[str, MLProgramBuffer],
        outputs: Mapping[str, MLProgramBuffer],
    ) -> None:
        """Add one run of a graph.

        Args:
            graph: Built by the program's context. The shapes of the inputs determine the sizes of
                its open dimensions.
            inputs: An argument or buffer of this program for every input, by name, with exactly
                the input's data type and shape.
            outputs: An argument or buffer for every output, likewise. None may occur twice, but an
                output may also be an input.

        Raises:
            ValidationError: A name, data type, shape or context does not fit, or an argument or
                buffer belongs to another program.
            InvalidStateError: The program is compiled, the graph is destroyed, or
                `initialize_graph` has turned some of its inputs into constants.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Steps".
        """
        recorder = self._recorder
        recorder.check_open()
        compiled = compiled_of(graph)
        compiled.check_usable(recorder.session, ValidationError)
        compiled.bound.check_free("dispatch")
        sources = self._slots(inputs, "input", compiled.signature.inputs)
        targets = self._slots(outputs, "output", compiled.signature.outputs)
        signature, sizes = compiled.fixed(inputs, ValidationError)
        for kind, slots, wanted in (
            ("input", sources, signature.inputs),
            ("output", targets, signature.outputs),
        ):
            for name, slot in slots.items():
                expected = Descriptor(wanted[name].data_type, wanted[name].shape)
                if slot.descriptor != expected:
                    raise ValidationError(
                        f"dispatch: {kind} {shown(name)}: got {slot.descriptor}, expected"
                        f" {expected}"
                    )
        names: dict[Slot, str] = {}
        for name, slot in targets.items():
            if names.setdefault(slot, name) != name:
                raise ValidationError(
                    f"dispatch: outputs {shown(names[slot])} and {shown(name)} are the same; give"
                    " each one of its own"
                )
        self._steps.append(GraphStep(fix(compiled.recipe, dict(sizes)), sources, targets))

    def _slots(self, given: object, kind: str, known: Mapping[str, Any]) -> dict[str, Slot]:
        """Return the slot of each input or output, checking that all and no others are present."""
        mapping = convert.mapping(given, f"dispatch: {kind}s")
        unknown = [name for name in mapping if name not in known]
        if unknown:
            names = ", ".join(map(shown, list(known)[:32])) or "none"
            raise ValidationError(
                f"dispatch: unknown {kind} {shown(unknown[0])}; this graph has {names}"
            )
        missing = [name for name in known if name not in mapping]
        if missing:
            raise ValidationError(f"dispatch: {kind} {shown(missing[0])} is missing")
        return {
            name: self._recorder.slot_of(mapping[name], f"dispatch: {kind} {shown(name)}")
            for name in known
        }

    def compute(
        self,
        wgsl: str,
        resources: Iterable[MLProgramBuffer],
        workgroups: Workgroups = (1, 1, 1),
        entry_point: str = "main",
        constants: Mapping[str, float] | None = None,
    ) -> None:
        """Add one dispatch of your own kernel.

        Args:
            wgsl: WGSL code, with `@group(0) @binding(n) var<storage, read>` (or `read_write`) for
                each resource that the kernel uses.
            resources: Arguments and buffers of this program, for the bindings 0, 1, 2 and so on.
            workgroups: Number of workgroups along x, y and z, each at least 1; missing ones are 1.
            entry_point: Name of a function of the code with `@compute`.
            constants: Values of pipeline-overridable constants, by name; required for those
                without a default.

        Raises:
            ValidationError: The code's bindings and the resources do not match, a constant is
                unknown or missing, or a written resource is bound twice. Or there are more
                workgroups or invocations than the device can run.
            NotSupportedError: The code enables a feature that the device lacks.
            InvalidStateError: The program is compiled.
            ContextLostError: The context is lost.

        Source: webnn_py, spec/programs.md, "Steps".
        """
        recorder = self._recorder
        recorder.check_open()
        what = f"compute {shown(entry_point)}"
        code = convert.string(wgsl, "compute: wgsl")
        name = convert.string(entry_point, "compute: entry_point")
        slots = tuple(
            recorder.slot_of(resource, f"{what}: resource {i}")
            for i, resource in enumerate(convert.items(resources, f"{what}: resources"))
        )
        try:
            module = read_module(code)
            interface = module.entry_point(name)
            _check_bindings(module, interface, slots)
            values = _constants(module, interface, constants)
        except ValidationError as error:
            raise ValidationError(f"{what}: {error}") from None
        groups = _workgroups(workgroups, what)
        workgroup = Workgroup(interface.invocations(values), interface.workgroup_bytes)
        recorder.check_device(what, features_of(code), workgroup, groups)
        self._steps.append(KernelStep(code, name, interface, values, slots, groups))

    def __repr__(self) -> str:
        return f"<MLProgramSequence of {len(self._steps)} steps>"


def _check_bindings(module: Module, interface: EntryPoint, slots: Sequence[Slot]) -> None:
    """Check that bindings and resources match, and that no written resource has two bindings.

    Raises:
        ValidationError: A binding or a resource breaks this rule.
    """
    names: dict[Slot, str] = {}
    for binding in interface.bindings:
        if binding.binding >= len(slots):
            raise ValidationError(
                f"{shown(binding.name)} is @binding({binding.binding}); got {len(slots)} resources"
            )
        slot = slots[binding.binding]
        other = names.setdefault(slot, binding.name)
        written = [b.name for b in interface.bindings if b.written]
        if other != binding.name and {other, binding.name} & set(written):
            raise ValidationError(
                f"{shown(other)} and {shown(binding.name)} are the same resource, and one of them"
                " is written; a kernel cannot do that"
            )
    for number in range(len(slots)):
        if number not in module.bindings:
            raise ValidationError(
                f"resource {number}: the WGSL declares no @group(0) @binding({number})"
            )


def _constants(module: Module, interface: EntryPoint, given: object) -> dict[str, float]:
    """Return the values of pipeline-overridable constants, by name or `@id`.

    Raises:
        ValidationError: A constant is unknown, is not a number, or is missing.
    """
    mapping = convert.mapping({} if given is None else given, "constants")
    known = module.overrides
    values: dict[str, float] = {}
    for name, value in mapping.items():
        if name not in known:
            names = ", ".join(map(shown, known)) or "none"
            raise ValidationError(f"unknown constant {shown(name)}; the WGSL has {names}")
        number = value if isinstance(value, bool) else convert.double(value, f"constant {name}")
        values[known[name].key] = float(number)
    for name, override in interface.overrides.items():
        if not override.default and override.key not in values:
            raise ValidationError(f"constant {shown(name)} has no default; give it in `constants`")
    return values


def _workgroups(value: object, what: str) -> tuple[int, int, int]:
    given = (value,) if isinstance(value, numbers.Integral) else convert.items(value, what)
    counts = [convert.unsigned(count, f"{what}: workgroups") for count in given]
    if not 1 <= len(counts) <= 3 or 0 in counts:
        raise ValidationError(
            f"{what}: workgroups {shown(value)}, expected one to three numbers, each at least 1"
        )
    x, y, z = (*counts, 1, 1)[:3]
    return x, y, z
