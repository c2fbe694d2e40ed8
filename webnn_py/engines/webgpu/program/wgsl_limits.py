"""Limits of WGSL that keep drivers from crashing or compiling for minutes.

Drivers recurse into nested code, and expand a function or type at each use. spec/programs.md,
"Limits of WGSL", has the rules; readers in other languages apply them too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown

MAX_DEPTH = 512
"""Nesting depth: a bracket counts as `BRACKET_DEPTH`, operators and `else` as 1."""
BRACKET_DEPTH = 4
"""Recursive parser calls for a bracket, about: one for each of some levels of precedence."""
MAX_TOKENS = 2**17
"""Tokens of a module."""
MAX_EXPANDED_TOKENS = 2**18
"""Tokens of a declaration with each reference replaced by its declaration."""
MAX_MEMBERS = 2048
"""Members of a list between two brackets."""
_KINDS = frozenset(["alias", "const", "fn", "override", "struct", "var"])
_OPERATORS = frozenset("-+*/%&|^!~<>.=@")


def check_limits(tokens: Sequence[str]) -> None:
    """Check the nesting depth and the expanded size of a module.

    Args:
        tokens: The module's tokens, without comments.

    Raises:
        ValidationError: A limit is exceeded.
    """
    if len(tokens) > MAX_TOKENS:
        raise ValidationError(f"the WGSL has {len(tokens)} tokens, expected {MAX_TOKENS} at most")
    _check_nesting(tokens)
    _check_expansion(_uses(tokens))


def _check_nesting(tokens: Sequence[str]) -> None:
    """Add up, at each token, the open brackets and the operators before it in each of them."""
    links, elses, members = [0], [0], [0]  # by open bracket
    depth, closed = 0, False
    for token in tokens:
        if closed and token != "else":
            depth -= elses[-1]
            elses[-1] = 0
        closed = False
        if token in "([{":
            if token == "{":  # a condition's operators do not nest the block
                depth -= links[-1]
                links[-1] = 0
            for counts in (links, elses, members):
                counts.append(0)
            depth += BRACKET_DEPTH
        elif token in ")]}":
            if len(links) > 1:
                depth -= BRACKET_DEPTH + links.pop() + elses.pop()
                members.pop()
            closed = token == "}"
        elif token in ",;":
            depth -= links[-1]
            links[-1] = 0
            members[-1] += token == ","
            if members[-1] >= MAX_MEMBERS and len(members) > 1:
                raise ValidationError(f"the WGSL has a list of over {MAX_MEMBERS} members")
        elif token == "else":
            elses[-1] += 1
            depth += 1
        elif token in _OPERATORS:
            links[-1] += 1
            depth += 1
        if depth > MAX_DEPTH:
            raise ValidationError(
                f"the WGSL is nested too deeply: brackets, counted as {BRACKET_DEPTH}, operators"
                f" and 'else' within each other are over {MAX_DEPTH}; put parts into variables"
            )


def _uses(tokens: Sequence[str]) -> dict[str, Counter[str]]:
    """Count the names that each top-level declaration uses; "" counts all its tokens.

    Members and parameters do not count. A local variable counts if it has a declaration's name.
    """
    found: dict[str, Counter[str]] = {}
    used: Counter[str] = Counter()
    name, kind, before, depth = "", "", "", 0
    for token, after in itertools.zip_longest(tokens, tokens[1:], fillvalue=""):
        used[""] += 1
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth = max(depth - 1, 0)
        elif not kind and not depth and token in _KINDS:
            kind = token
        elif kind and not name and token not in "<>," and before not in ("<", ","):
            name = token  # `var<storage, read_write>` comes before it
        elif before != "." and after != ":":
            used[token] += 1
        before = token
        if not depth and token in ";}":
            if name:
                found[name] = found.get(name, Counter()) + used
            used, name, kind = Counter(), "", ""
    return found


def _check_expansion(uses: Mapping[str, Counter[str]]) -> None:
    """Compute each declaration's size with all references expanded, depth first."""
    sizes: dict[str, int] = {}
    for first in uses:
        path = {} if first in sizes else {first: iter(uses[first])}
        while path:
            name = next(reversed(path))
            other = next(
                (n for n in path[name] if n in uses and n not in sizes and n != name), None
            )
            if other in path:
                raise ValidationError(
                    f"the WGSL declares {shown(other)} by way of itself; give a local variable of"
                    " this name another one"
                )
            if other is not None:
                path[other] = iter(uses[other])
                continue
            del path[name]
            sizes[name] = uses[name][""] + sum(
                count * sizes.get(used, 0) for used, count in uses[name].items()
            )
            if sizes[name] > MAX_EXPANDED_TOKENS:
                raise ValidationError(
                    f"the WGSL expands to over {MAX_EXPANDED_TOKENS} tokens, with what"
                    f" {shown(name)} uses put in the place of each use; call functions in loops, or"
                    " fewer times"
                )
