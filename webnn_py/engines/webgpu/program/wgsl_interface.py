"""The interface of a WGSL module: entry points with their bindings and constants.

The parser reads comments, top-level declarations and their references, no more. The device
validates the module.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import is_text, shown
from webnn_py.engines.webgpu.program.wgsl_limits import check_limits

_TOKEN = re.compile(r"[^\W\d]\w*|\d[\w.]*|\.\d\w*|\S")
_COMMENT = re.compile(r"//[^\n\v\f\r\x85\u2028\u2029]*|/\*")
_COMMENT_END = re.compile(r"/\*|\*/")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[iu]?")
_OPEN, _CLOSE = "([{", ")]}"
_SIZES = {"bool": 4, "f16": 2, "f32": 4, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
_SCALARS = {"f": 4, "h": 2, "i": 4, "u": 4}
_VECTOR = re.compile(r"(?:vec|mat([234])x)([234])([fhiu]?)")


@dataclass(frozen=True, slots=True)
class StorageBinding:
    """A variable in the storage address space.

    Attributes:
        name: The variable's name.
        binding: Its number in group 0.
        written: Whether its access mode is read_write.
    """

    name: str
    binding: int
    written: bool


@dataclass(frozen=True, slots=True)
class Override:
    """A pipeline-overridable constant.

    Attributes:
        key: Its number as text if it has one, else its name.
        default: The tokens of its default value; empty if it must be set.
    """

    key: str
    default: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """Resources that an entry point uses, directly or through calls.

    Attributes:
        bindings: In the order of their numbers.
        overrides: By name.
        workgroup_size: Invocations along x, y and z, as tokens of expressions.
        workgroup_bytes: Known bytes of its variables in the workgroup address space; structs count
            0.
    """

    bindings: tuple[StorageBinding, ...]
    overrides: Mapping[str, Override]
    workgroup_size: tuple[tuple[str, ...], ...]
    workgroup_bytes: int = 0

    def invocations(self, constants: Mapping[str, float]) -> tuple[int | None, ...]:
        """Return the workgroup's size along x, y, z; None where it is no number or constant."""
        sizes = tuple(self._value(tokens, constants) for tokens in self.workgroup_size)
        return (*sizes, 1, 1)[:3]

    def _value(self, tokens: tuple[str, ...], constants: Mapping[str, float]) -> int | None:
        for _ in range(len(self.overrides) + 1):  # any more would be a cycle
            override = self.overrides.get(tokens[0]) if len(tokens) == 1 else None
            if override is None:
                found = _INTEGER.fullmatch("".join(tokens))
                return int(found[1], 0) if found else None
            if override.key in constants:
                return int(constants[override.key])
            tokens = override.default
        return None


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A top-level declaration of a module.

    Attributes:
        kind: Its keyword: fn, var, override, struct …
        name: The declared name.
        attributes: The tokens in the brackets of each attribute.
        template: The tokens between the angle brackets of `var`.
        tokens: All tokens after its name.
    """

    kind: str
    name: str
    attributes: Mapping[str, tuple[str, ...]]
    template: tuple[str, ...]
    tokens: tuple[str, ...]

    def attribute(self, name: str) -> int | None:
        """Return the number of an attribute; None if it is absent."""
        tokens = self.attributes.get(name)
        if tokens is None:
            return None
        found = _INTEGER.fullmatch("".join(tokens).rstrip(","))
        if found is None:
            raise ValidationError(
                f"{self.kind} {self.name}: @{name}({' '.join(tokens)}), expected a number"
            )
        return int(found[1], 0)


@dataclass(frozen=True)
class Module:
    """A parsed WGSL module.

    Attributes:
        enabled: The enabled extensions.
        declarations: By name.
    """

    enabled: tuple[str, ...]
    declarations: Mapping[str, _Declaration]

    @property
    def entry_points(self) -> tuple[str, ...]:
        """The names of the compute entry points."""
        return tuple(n for n, d in self.declarations.items() if "compute" in d.attributes)

    @functools.cached_property
    def bindings(self) -> frozenset[int | None]:
        """The numbers of the declared bindings in group 0."""
        resources = [d for d in self.declarations.values() if "binding" in d.attributes]
        return frozenset(d.attribute("binding") for d in resources if d.attribute("group") == 0)

    @functools.cached_property
    def overrides(self) -> Mapping[str, Override]:
        """The pipeline-overridable constants, by name."""
        found = (d for d in self.declarations.values() if d.kind == "override")
        return {declaration.name: self._override(declaration) for declaration in found}

    def entry_point(self, name: str) -> EntryPoint:
        """Return the interface of an entry point.

        Raises:
            ValidationError: There is no such compute entry point, or it uses a resource other than
                a storage buffer in group 0.
        """
        if name not in self.entry_points:
            known = ", ".join(map(shown, self.entry_points)) or "none"
            raise ValidationError(
                f"there is no compute entry point {shown(name)}; the WGSL has {known}"
            )
        used = self._reachable(name)
        bindings = [self._binding(d) for d in used if d.kind == "var" and "binding" in d.attributes]
        overrides = {d.name: self.overrides[d.name] for d in used if d.kind == "override"}
        size = _parts(self.declarations[name].attributes.get("workgroup_size", ()))
        ordered = tuple(sorted(bindings, key=lambda binding: binding.binding))
        for one, other in itertools.pairwise(ordered):
            if one.binding == other.binding:
                raise ValidationError(
                    f"{one.name} and {other.name} are both @binding({one.binding}), and"
                    f" {name} uses both"
                )
        shared = [d for d in used if d.template[:1] == ("workgroup",)]
        taken = sum(self._bytes(_type_of(variable.tokens)) for variable in shared)
        return EntryPoint(ordered, overrides, tuple(map(self._without_names, size)), taken)

    def _bytes(self, kind: tuple[str, ...]) -> int:
        """Return the bytes of a built-in type; 0 for others, and for sizes that are no numbers."""
        name, *rest = kind
        arguments = list(_parts(tuple(rest[1:-1])))
        if name == "array" and len(arguments) == 2:
            return self._bytes(arguments[0]) * self._number(arguments[1])
        if name == "atomic" and arguments:
            return self._bytes(arguments[0])
        if found := _VECTOR.fullmatch(name):
            columns, rows, letter = found.groups()
            scalar = _SCALARS.get(letter) or self._bytes(arguments[0] if arguments else ("",))
            return int(columns or 1) * (4 if rows == "3" else int(rows)) * scalar
        return _SIZES.get(name, 0)

    def _number(self, tokens: tuple[str, ...]) -> int:
        """Return a number, or a constant that is one; else 0."""
        found = _INTEGER.fullmatch("".join(self._without_names(tokens)))
        return int(found[1], 0) if found else 0

    def _without_names(self, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """Replace the name of a constant by its value, repeatedly."""
        for _ in self.declarations:  # any more would be a cycle
            constant = self.declarations.get(tokens[0]) if len(tokens) == 1 else None
            if constant is None or constant.kind != "const" or "=" not in constant.tokens:
                break
            tokens = constant.tokens[constant.tokens.index("=") + 1 :]
        return tokens

    def _override(self, declaration: _Declaration) -> Override:
        number = declaration.attribute("id")
        key = declaration.name if number is None else str(number)
        tokens = declaration.tokens
        default = tokens[tokens.index("=") + 1 :] if "=" in tokens else ()
        return Override(key, self._without_names(default))

    def _reachable(self, name: str) -> list[_Declaration]:
        """Return a declaration and all that it references, transitively."""
        found = {name: self.declarations[name]}
        frontier = [name]
        while frontier:
            declaration = found[frontier.pop()]
            size = declaration.attributes.get("workgroup_size", ())
            for word in itertools.chain(_names_used(declaration), size):
                if word in self.declarations and word not in found:
                    found[word] = self.declarations[word]
                    frontier.append(word)
        return list(found.values())

    def _binding(self, variable: _Declaration) -> StorageBinding:
        group, binding = variable.attribute("group"), variable.attribute("binding")
        space, *rest = (token for token in variable.template or ("handle",) if token != ",")
        if group != 0 or binding is None:
            raise ValidationError(f"var {variable.name}: @group({group}), expected @group(0)")
        if space != "storage":
            use = "; use pipeline-overridable constants" if space == "uniform" else ""
            raise ValidationError(
                f"var {variable.name}: a {space} at @binding({binding}), expected"
                f" var<storage, read> or var<storage, read_write>{use}"
            )
        return StorageBinding(variable.name, binding, rest == ["read_write"])


def _names_used(declaration: _Declaration) -> Iterator[str]:
    """Yield the names that a declaration references: no members, built-ins or local variables."""
    tokens = declaration.tokens
    own: list[set[str]] = [set()]  # by block
    headers: list[int] = []  # enclosing blocks of `for`
    parameters = 1 if declaration.kind == "fn" else 0
    depth, pending = 0, ""
    for place, token in enumerate(tokens):
        before, after = tokens[max(place - 1, 0)], "".join(tokens[place + 1 : place + 2])
        depth += (token == "(") - (token == ")")
        if parameters and token == ")" and not depth:
            parameters = 0
        if token == "for":
            headers.append(len(own))
            own.append(set())
        elif token == "{":
            own.append(set())
        elif token == "}":
            own = own[:-1] or [set()]
            if headers and headers[-1] == len(own) - 1:
                own = own[: headers.pop()]
        elif token == ";":
            own[-1].add(pending)
            pending = ""
        elif before in (".", "@") or tokens[max(place - 3, 0) : place] == ("@", "builtin", "("):
            continue
        elif after == ":" and (parameters or declaration.kind == "struct"):
            own[0].add(token)
        elif _declares(tokens, place):
            pending = token
        elif not any(token in names for names in own):
            yield token


def _declares(tokens: tuple[str, ...], place: int) -> bool:
    """Whether the token at `place` is the name that a `let`, `var` or `const` declares."""
    if tokens[place - 1 : place] == (">",):
        begin = place - 1
        while begin and tokens[begin] not in "<;{":
            begin -= 1
        return tokens[max(begin - 1, 0) : begin + 1] == ("var", "<")
    return tokens[max(place - 1, 0) : place] in (("let",), ("var",), ("const",))


def _type_of(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Return a variable's type, from the tokens after its name."""
    return tokens[1:] if len(tokens) > 1 and tokens[0] == ":" else ("",)


def _parts(tokens: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Split the arguments of an attribute or template at commas outside brackets."""
    part: list[str] = []
    depth = 0
    for token in tokens:
        depth += (token in "([{<") - (token in ")]}>")
        if token == "," and not depth:
            yield tuple(part)
            part = []
        else:
            part.append(token)
    if part:
        yield tuple(part)


def features_of(code: str) -> frozenset[str]:
    """Return the device features that a module needs, by WebGPU's names or wgpu's."""
    module = read_module(code)
    wide = any(
        token in ("i64", "u64") or re.fullmatch(r"[\d][\w]*l[iu]", token)
        for declaration in module.declarations.values()
        for token in (*declaration.template, *declaration.tokens)
    )
    names = {"f16": "shader-f16", "subgroups": "subgroups"}
    found = {names.get(name, name.replace("_", "-")) for name in module.enabled}
    return frozenset(found | ({"shader-int64"} if wide else set()))


@functools.lru_cache(maxsize=64)
def read_module(code: str) -> Module:
    """Parse a module.

    Raises:
        ValidationError: It ends within a comment or brackets, is no valid text, or exceeds a limit.
    """
    return Module(*_Parser(tokens_of(code)).module())


def tokens_of(code: str) -> list[str]:
    """Return names, numbers and single characters, without comments.

    Raises:
        ValidationError: It ends within a comment, is no valid text, or exceeds a limit.
    """
    if not is_text(code):
        raise ValidationError("the WGSL holds half a surrogate pair, which is no character")
    tokens: list[str] = _TOKEN.findall(_without_comments(code))
    check_limits(tokens)
    return tokens


def _without_comments(code: str) -> str:
    parts, position = [], 0
    while found := _COMMENT.search(code, position):
        parts.append(code[position : found.start()])
        position = _comment_end(code, found.end()) if found[0] == "/*" else found.end()
    return " ".join([*parts, code[position:]])


def _comment_end(code: str, position: int) -> int:
    depth = 1
    while depth:
        found = _COMMENT_END.search(code, position)
        if found is None:
            raise ValidationError("the WGSL ends within a comment")
        depth += 1 if found[0] == "/*" else -1
        position = found.end()
    return position


class _Parser:
    """Parser of a module's tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0

    def module(self) -> tuple[tuple[str, ...], dict[str, _Declaration]]:
        """Return the enabled extensions, and the declarations by name."""
        enabled: list[str] = []
        declarations: dict[str, _Declaration] = {}
        while self._place < len(self._tokens):
            attributes = self._attributes()
            kind, *tokens = self._until_end() or [";"]
            if kind == "enable":
                enabled += [token for token in tokens if token not in ",;"]
                continue
            template: list[str] = []
            if kind == "var" and tokens[:1] == ["<"]:
                end = tokens.index(">") if ">" in tokens else 0
                template, tokens = tokens[1:end], tokens[end + 1 :]
            if tokens:
                name, *rest = tokens
                if rest and rest[-1] == ";":
                    rest.pop()
                declarations[name] = _Declaration(
                    kind, name, attributes, tuple(template), tuple(rest)
                )
        return tuple(enabled), declarations

    def _attributes(self) -> dict[str, tuple[str, ...]]:
        attributes: dict[str, tuple[str, ...]] = {}
        while self._tokens[self._place : self._place + 1] == ["@"]:
            name = "".join(self._tokens[self._place + 1 : self._place + 2])
            self._place += 2
            given: list[str] = []
            if self._tokens[self._place : self._place + 1] == ["("]:
                given = self._brackets()[1:-1]
            attributes[name] = tuple(given)
        return attributes

    def _brackets(self) -> list[str]:
        """Return the tokens from an opening bracket to the closing one."""
        begin, depth = self._place, 0
        while self._place < len(self._tokens):
            token = self._tokens[self._place]
            self._place += 1
            depth += (token in _OPEN) - (token in _CLOSE)
            if depth == 0:
                return self._tokens[begin : self._place]
        raise ValidationError(f"the WGSL ends within the brackets of {self._tokens[begin]!r}")

    def _until_end(self) -> list[str]:
        """Return a declaration up to its semicolon or the end of its body."""
        found: list[str] = []
        while self._place < len(self._tokens):
            token = self._tokens[self._place]
            if token in _OPEN:
                found += self._brackets()
                if token == "{":
                    break
            else:
                found.append(token)
                self._place += 1
                if token == ";":
                    break
        return found
