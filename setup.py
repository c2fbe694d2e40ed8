"""Build steps that pyproject.toml cannot declare: the runtimes in wheels, the README's links.

The runtimes for C++ and browsers live in runtime/, beside the package, and become part of wheels.
The README links to files of the repository; a package index needs absolute links.
"""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
RUNTIME_FILES = (
    "cpp/webnn_program.hpp", "cpp/CMakeLists.txt", "cpp/README.md", "cpp/examples/*",
    "js/*.mjs", "js/*.mts", "js/*.ts", "js/package.json", "js/README.md", "js/LICENSE",
)  # fmt: skip
"""What wheels contain of runtime/: all but tests and the demo page."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


class BuildWithRuntimes(build_py):
    """Copies the runtimes into the package; editable installs use them where they are."""

    def run(self) -> None:
        """Build the package, then copy the runtimes."""
        super().run()
        if not self.editable_mode:
            for source, target in self._runtimes().items():
                self.mkpath(str(target.parent))
                shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the paths of all files that this command writes."""
        return [
            *super().get_outputs(include_bytecode),
            *([] if self.editable_mode else map(str, self._runtimes().values())),
        ]

    def _runtimes(self) -> dict[Path, Path]:
        folder = Path(self.build_lib, "webnn_py")
        sources = [path for each in RUNTIME_FILES for path in (ROOT / "runtime").glob(each)]
        return {source: folder / source.relative_to(ROOT) for source in sources}


def readme() -> str:
    """Return the README with absolute links: pictures to raw files, the rest to pages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithRuntimes},
        long_description=readme(),
        long_description_content_type="text/markdown",
    )
