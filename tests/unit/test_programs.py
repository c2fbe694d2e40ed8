"""What programs need of devices, and what their kernels say of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from webnn_py import NotSupportedError, ValidationError
from webnn_py.engines.webgpu.program.needs import DEFAULT_LIMITS, DeviceCapabilities, choose_variant
from webnn_py.engines.webgpu.program.plan import (
    Argument,
    BindingLayout,
    Place,
    Plan,
    ProgramKernel,
    Section,
    Step,
    Variant,
)
from webnn_py.engines.webgpu.program.wgsl_interface import features_of, read_module

LEAST = DeviceCapabilities(True, frozenset(), DEFAULT_LIMITS)
PLAIN = Variant("any", (), {}, (), (), ())


def plan(*variants: Variant) -> Plan:
    return Plan((), (), (), variants, {})


def test_the_first_variant_that_a_device_can_run_is_chosen() -> None:
    halves = replace(PLAIN, adapter="hardware", features=("shader-f16",))
    hardware, software = (replace(PLAIN, adapter=a) for a in ("hardware", "software"))
    given = plan(halves, hardware, software)
    assert choose_variant(given, LEAST) is hardware
    assert choose_variant(given, replace(LEAST, hardware=False)) is software
    with_f16 = replace(LEAST, features=frozenset({"shader-f16", "subgroups"}))
    assert choose_variant(given, with_f16) is halves
    assert choose_variant(given, replace(with_f16, hardware=False)) is software
    assert choose_variant(plan(PLAIN), replace(LEAST, hardware=False)) is PLAIN


def test_what_is_lacking_is_said_of_every_variant() -> None:
    wide = replace(PLAIN, limits={"maxBufferSize": 1 << 30, "maxDreams": 3})
    halves = replace(PLAIN, adapter="software", features=("shader-f16",))
    with pytest.raises(NotSupportedError) as caught:
        choose_variant(plan(wide, halves), LEAST)
    assert str(caught.value) == (
        "this device cannot run the program: variant 0 needs maxBufferSize of 1073741824 (it has"
        " 268435456), the limit maxDreams, which it does not know; variant 1 needs the feature"
        " shader-f16, a software adapter"
    )


def test_limits_that_a_variant_does_not_tell_of_are_found() -> None:
    large = Argument("x", "float32", (1 << 28,), "read", True)
    step = Step(0, (Place("argument", 0, 0, large.size),), (70000, 1, 1))
    kernel = ProgramKernel("k", 0, "main", (), (BindingLayout(0, "read-only-storage", 4),))
    variant = Variant("any", (), {}, (), (step,), (Section(0, 1, 1),))
    with pytest.raises(NotSupportedError) as caught:
        choose_variant(Plan((large,), ("",), (kernel,), (variant,), {}), LEAST)
    assert str(caught.value) == (
        "this device cannot run the program: variant 0 needs maxBufferSize of 1073741824 (it has"
        " 268435456), maxStorageBufferBindingSize of 1073741824 (it has 134217728),"
        " maxComputeWorkgroupsPerDimension of 70000 (it has 65535)"
    )


MODULE = """
enable f16, subgroups; // and /* nothing else
/* a comment /* with another */ @group(0) @binding(9) var<storage> hidden: u32; */
@group(0) @binding(0) var<storage, read_write> counts: array<atomic<i32>, 4>;
@group(0) @binding(1) var<storage> given: array<f32>;
@binding(2u) @group(0x0) var<storage,read_write,> results: array<f32>;
@group(1) @binding(0) var<uniform> far: vec4<f32>;
@group(0) @binding(3) var<uniform> near: vec4<f32>;
@group(0) @binding(4) var picture: texture_2d<f32>;
override width: u32 = 64;
@id(3) override step: f32;
override unused: f32;
override unknown = 2 * width;
var<workgroup> shared_words: array<u32, 16>;
struct Pair { first: f32, second: vec2<f32>, }
alias Real = f32;
fn helper(i: u32) -> Real { return given[i] * step; }
@compute @workgroup_size(width, 2,) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  results[id.x] = helper(id.x);
}
@workgroup_size(0x10) @compute fn count() { atomicAdd(&counts[0], 1); }
@compute @workgroup_size(unknown) fn uniforms() -> f32 { return near.x; }
@compute @workgroup_size(1) fn groups() -> f32 { return far.x; }
@compute @workgroup_size(1) fn textures() { _ = textureLoad(picture, vec2(0), 0); }
@fragment fn paint() -> @location(0) vec4<f32> { return vec4(1.0); }
"""


def test_an_entry_point_says_what_it_uses() -> None:
    module = read_module(MODULE)
    assert module.enabled == ("f16", "subgroups")
    assert module.entry_points == ("main", "count", "uniforms", "groups", "textures")
    assert module.bindings == {0, 1, 2, 3, 4}
    main = module.entry_point("main")
    assert [(b.name, b.binding, b.written) for b in main.bindings] == [
        ("given", 1, False),
        ("results", 2, True),
    ]
    assert {name: (o.key, o.default) for name, o in main.overrides.items()} == {
        "width": ("width", ("64",)),
        "step": ("3", ()),
    }
    assert main.invocations({}) == (64, 2, 1)
    assert main.invocations({"width": 8.0}) == (8, 2, 1)
    count = module.entry_point("count")
    assert [b.name for b in count.bindings] == ["counts"]
    assert count.invocations({}) == (16, 1, 1)


OWN_NAMES = """
struct Particle { x: f32, @size(8) given: f32 }
alias Id = vec3<u32>;
@group(0) @binding(0) var<storage, read_write> results: array<Particle>;
@group(0) @binding(1) var<storage> x: array<f32>;
@group(0) @binding(2) var<storage> given: array<f32>;
@group(0) @binding(3) var<storage> i: array<u32>;
override num_workgroups: f32;
@compute @workgroup_size(1) fn members(@builtin(num_workgroups) id: Id) { results[id.x].x = 1.0; }
@compute @workgroup_size(1) fn parameters(@builtin(local_invocation_id) given: Id) {
  results[0].x = f32(given.x);
}
@compute @workgroup_size(1) fn variables() {
  for (var i = 0; i < 3; i++) {
    let x = f32(i);
    var<function> given: f32 = x;
    results[i].x += given;
  }
}
@compute @workgroup_size(1) fn outside() {
  { let x = 1.0; results[0].x = x; }
  for (var i = 0; i < 3; i++) { if (i == 1) { continue; } }
  let given = given[0];
  results[1].x = given + x[i[0]] + num_workgroups;
}
"""


@pytest.mark.parametrize(
    ("name", "bindings", "overrides"),
    [
        ("members", ["results"], []),
        ("parameters", ["results"], []),
        ("variables", ["results"], []),
        ("outside", ["results", "x", "given", "i"], ["num_workgroups"]),
    ],
)
def test_names_of_its_own_are_nothing_that_an_entry_point_uses(
    name: str, bindings: list[str], overrides: list[str]
) -> None:
    used = read_module(OWN_NAMES).entry_point(name)
    assert [binding.name for binding in used.bindings] == bindings
    assert list(used.overrides) == overrides


def test_constants_say_how_large_a_workgroup_is() -> None:
    module = read_module(
        "const SIDE = 32u; const ROW: u32 = SIDE; override depth = ROW; override same = depth;"
        "@compute @workgroup_size(SIDE, ROW, depth) fn main() {}"
        "@compute @workgroup_size(same) fn line() { _ = depth; }"
        "const round = round; @compute @workgroup_size(round, 1 + 1) fn circle() {}"
    )
    assert module.entry_point("main").invocations({}) == (32, 32, 32)
    assert module.entry_point("main").invocations({"depth": 2.0}) == (32, 32, 2)
    assert module.entry_point("line").invocations({"depth": 2.0}) == (2, 1, 1)
    assert module.entry_point("circle").invocations({}) == (None, None, 1)


SHARED = """
const SIDE = 16u;
const ROW = SIDE;
struct Pair { a: f32, b: f32 }
var<workgroup> tile: array<array<vec4<f32>, ROW>, 4>;  // 1024 bytes
var<workgroup> sums: array<atomic<u32>, 3>;  // 12
var<workgroup> frame: mat2x3f;  // 32
var<workgroup> halves: array<vec3<f16>, 2>;  // 16
var<workgroup> pairs: array<Pair, 64>;
var<workgroup> unused: array<f32, 4096>;
var<private> own: array<f32, 4096>;
@compute @workgroup_size(64) fn main() {
  tile[0][0] = vec4(own[0]); atomicStore(&sums[0], 1u); frame[0] = vec3f(); pairs[0].a = 1;
  halves[0] = vec3<f16>();
}
"""


def test_what_variables_of_workgroups_take() -> None:
    assert read_module(SHARED).entry_point("main").workgroup_bytes == 1024 + 12 + 32 + 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paint", "no compute entry point 'paint'; the WGSL has 'main', 'count', "),
        ("uniforms", r"var near: a uniform at @binding\(3\), .*; use pipeline-overridable"),
        ("groups", r"var far: @group\(1\), expected @group\(0\)"),
        ("textures", r"var picture: a handle at @binding\(4\), expected var<storage, read>"),
    ],
)
def test_entry_points_that_programs_cannot_run(name: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read_module(MODULE).entry_point(name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("/* /* */ fn main() {}", "ends within a comment"),
        ("fn main() { if (true) {", "ends within the brackets of '{'"),
        ("@group(0", r"ends within the brackets of '\('"),
    ],
)
def test_code_that_is_cut_off(code: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read_module(code)


@pytest.mark.parametrize(
    "code", ["", ";;", "@", "var", "var<", "enable", "fn", "@compute fn", "\0"]
)
def test_code_that_is_none_is_read_without_errors(code: str) -> None:
    assert read_module(code).bindings == frozenset()


@pytest.mark.parametrize(
    ("code", "features"),
    [
        ("enable f16;", {"shader-f16"}),
        ("enable f16, subgroups;", {"shader-f16", "subgroups"}),
        ("enable clip_distances;", {"clip-distances"}),
        ("var<private> x: i64;", {"shader-int64"}),
        ("fn f() { let x = 5li; }", {"shader-int64"}),
        ("fn f() { let f16 = 1; let li = 0xfli; /* u64 */ }", {"shader-int64"}),
        ("fn f() { let x = 5u; let y = ali; }", set()),
    ],
)
def test_features_that_code_needs(code: str, features: set[str]) -> None:
    assert features_of(code) == features
