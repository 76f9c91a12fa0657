#!/usr/bin/env python3
"""Fails on an #include that the module table forbids (docs/architecture.md), and on cp_ names where none belong."""
import pathlib
import re
import sys

ALLOWED = {
    "base": "",
    "tensor": "base",
    "text": "base",
    "comm": "base tensor",
    "kernels": "base tensor",
    "batch": "base tensor",
    "cache": "base tensor batch",
    "parallel": "base tensor comm kernels batch",
    "layers": "base tensor kernels batch cache parallel",
    "scheduler": "base batch cache",
    "model": "base tensor batch cache parallel layers",
    "engine": "base tensor comm kernels batch cache parallel model scheduler",
    "server": "base text engine",
    "cli": "base comm text engine server",
}
# Headers whose compile time is budgeted: the only modules (and how many .cc files of each) that may include them.
HEAVY = {"boost/beast": {"server": 1, "cli": 1}, "spdlog/": {"base": 1}}
HEAVY_NEVER_IN_HEADERS = ("boost/", "nlohmann/", "spdlog/", "CLI/", "hwy/")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    problems, heavy_count = [], {}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh", ".inc"):
            continue
        module = path.relative_to(root / "src").parts[0]
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        if module not in ALLOWED:
            problems.append(f"{where}: module '{module}' is not in the include table")
            continue
        allowed = set(ALLOWED[module].split()) | {module}
        for kind, name in INCLUDE.findall(text):
            if kind == '"':
                target = name.split("/")[0]
                if target not in ALLOWED:
                    problems.append(f'{where}: "{name}" is not a path from src/')
                elif target not in allowed:
                    problems.append(f"{where}: {module} may not include {target} ({name})")
                elif not (root / "src" / name).exists():
                    problems.append(f'{where}: "{name}" does not exist')
            elif path.suffix in (".h", ".cuh") and name.startswith(HEAVY_NEVER_IN_HEADERS) and "-inl" not in path.name:
                problems.append(f"{where}: <{name}> belongs in a .cc file")
            else:
                for prefix in HEAVY:
                    if name.startswith(prefix):
                        heavy_count.setdefault((prefix, module), set()).add(str(where))
        if module in ("kernels", "layers") and not re.search(r"(kda|mla)_attention", path.name):
            for line, content in enumerate(text.splitlines(), 1):
                if re.search(r"\bcp_", content):
                    problems.append(f"{where}:{line}: a cp_ name; {module} knows segments only")
    for (prefix, module), files in heavy_count.items():
        limit = HEAVY[prefix].get(module, 0)
        if len(files) > limit:
            problems.append(f"<{prefix}> in {len(files)} files of {module}, allowed {limit}: {', '.join(sorted(files))}")
    for p in problems:
        print(p)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
