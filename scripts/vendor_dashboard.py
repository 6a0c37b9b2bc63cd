"""Creates `app/dashboard/static/vendor/`: the libraries of the dashboard, taken from their npm packages.

    python -m scripts.vendor_dashboard

Each package is downloaded from the npm registry and checked against the hash below. Files are copied unchanged, except
that imports of packages become relative paths (a page with a strict Content-Security-Policy has no import map) and that
comments naming source maps are dropped. `vendor.json` lists the contents.
"""

import base64
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

FOLDER = Path(__file__).resolve().parent.parent / "app" / "dashboard" / "static" / "vendor"
_REGISTRY = "https://registry.npmjs.org"
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])(@?[a-z][^"']*)\2""")
_OWN_INDEX = re.compile(r"(?:\.\./\.\./src|\.)/index(?=['\"])")
"""Preact's types import each other through the folders of its package."""
_SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


@dataclass(frozen=True)
class Package:
    """An npm package, and which of its files to copy under which names."""

    name: str
    version: str
    licence: str
    sha512: str
    """Hash of its tarball, in base64, as stated by the registry."""
    files: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"{_REGISTRY}/{self.name}/-/{self.name.rpartition('/')[2]}-{self.version}.tgz"


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {
            "dist/preact.mjs": "preact.js",
            "src/index.d.ts": "preact.d.ts",
            "src/jsx.d.ts": "jsx.d.ts",
            "src/dom.d.ts": "dom.d.ts",
            "hooks/dist/hooks.mjs": "hooks.js",
            "hooks/src/index.d.ts": "hooks.d.ts",
        },
    ),
    Package(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js", "dist/htm.d.ts": "htm.d.ts"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        "vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": "signals-core.js", "dist/signals-core.d.ts": "signals-core.d.ts"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "MIT",
        "Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {"dist/signals.mjs": "signals.js", "dist/signals.d.ts": "signals.d.ts"},
    ),
    Package(
        "d3-force",
        "3.0.1",
        "ISC",
        "kAaaHLFebBYwgi5cYBXAI8vKrQFMCD2MEswj2QuPKKbdU1wYLc8WXtS7O8F/b6POCIe3gJjY6hkDstHi1yMETQ==",
        {"dist/d3-force.min.mjs": "d3-force.js"},
    ),
    Package(
        "@types/d3-force",
        "3.0.10",
        "MIT",
        "ZYeSaCF3p73RdOKcjj+swRlZfnYpK1EbaDiYICEEp5Q6sUiqFaFQ9qgoshp5CzIyyb/yD09kD9o2zEltCexlgw==",
        {"index.d.ts": "d3-force.d.ts"},
    ),
    Package(
        "d3-quadtree",
        "3.0.2",
        "ISC",
        "9Lu9mqJKRbIk0d6mKDjpvPURaPdwHVK5CYbcdd0/4vBgz4ldz/7TIOse3kNERsByGNfld58KEco507AztJWyTQ==",
        {"dist/d3-quadtree.min.mjs": "d3-quadtree.js"},
    ),
    Package(
        "d3-dispatch",
        "3.0.2",
        "ISC",
        "sAzH4Y4nsLo8eSqw5jKiZt+LU2wZmL/qS+OkxQGjhwazB/D7TY34R/QK1eshfGr7cZEKymKZ/Haem7m+lu98Sg==",
        {"dist/d3-dispatch.min.mjs": "d3-dispatch.js"},
    ),
    Package(
        "d3-timer",
        "3.0.2",
        "ISC",
        "1Il1aliroVSErrv5aulRBxAY+7+DnaoLIWGd1C6SsBTWDeobWiP/V69vwb8vT6abR1kKwaNe1196pmaQ1fK90A==",
        {"dist/d3-timer.min.mjs": "d3-timer.js"},
    ),
)
_MODULES = {
    "preact": "preact",
    "preact/hooks": "hooks",
    "@preact/signals-core": "signals-core",
    "d3-quadtree": "d3-quadtree",
    "d3-dispatch": "d3-dispatch",
    "d3-timer": "d3-timer",
}
"""Maps each import in vendored files to the local file."""


def files_of(package: Package, tarball: bytes) -> dict[str, bytes]:
    """Return the files and the licence in a package's tarball, by file name. Raises ValueError."""
    if base64.b64encode(hashlib.sha512(tarball).digest()).decode() != package.sha512:
        raise ValueError(f"{package.url} is not the package that it was")
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        members = {member.name.partition("/")[2]: member for member in archive if member.isfile()}

        def read(path: str) -> bytes:
            file = archive.extractfile(members[path])
            assert file is not None
            return file.read()

        files = {name: _relative(read(path).decode()).encode() for path, name in package.files.items()}
        files[licence_file(package)] = read("LICENSE")
    return files


def licence_file(package: Package) -> str:
    """Return the name of the licence file."""
    return f"{package.name.removeprefix('@').replace('/', '-')}.LICENSE.txt"


def _relative(text: str) -> str:
    """Return the text with relative imports only, and without the name of a source map."""
    text = _IMPORT.sub(lambda match: f"{match[1]}{match[2]}./{_MODULES[match[3]]}.js{match[2]}", text)
    text = _OWN_INDEX.sub("./preact.js", text)
    return _SOURCE_MAP.sub("\n", text)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    listed = []
    with httpx.Client(timeout=60) as client:
        for package in PACKAGES:
            files = files_of(package, client.get(package.url).raise_for_status().content)
            for name, content in files.items():
                (FOLDER / name).write_bytes(content)
            hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            listed.append(
                {"name": package.name, "version": package.version, "licence": package.licence, "sha256": hashes}
            )
    (FOLDER / "vendor.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
