"""Trees of files as Linux shows a host in /proc, /sys and /dev, below a folder: stand-ins for machines with GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_PCI = "sys/bus/pci/devices"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", errors="surrogateescape")
    return root


def on_bus(root: Path, bus_id: str, vendor: str, kind: str = "0x038000", node: int = 0) -> Path:
    folder = f"{_PCI}/{bus_id}"
    write(root, {f"{folder}/vendor": vendor, f"{folder}/class": kind, f"{folder}/numa_node": str(node)})
    return root / folder


def amd(root: Path, nodes: Sequence[int], simds: int = 440) -> Path:
    """A host with an AMD GPU at each of the NUMA ``nodes``, after the KFD's nodes of two processors."""
    topology = "sys/class/kfd/kfd/topology/nodes"
    for number, node in enumerate([None, None, *nodes]):
        said = "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\nunique_id 0\ndomain 0"
        if node is not None:
            bus = 0xC0 + number
            said = f"simd_count {simds}\nlocation_id {bus << 8}\nunique_id {0xABC0 + number}\ndomain 0"
            on_bus(root, f"0000:{bus:02x}:00.0", "0x1002", node=node)
        write(root, {f"{topology}/{number}/properties": said})
    return root


def intel(root: Path, nodes: Sequence[int], tiles: str = "drm/card{card}/gt/gt{tile}") -> Path:
    """A host with an Intel GPU of two tiles at each of the NUMA ``nodes``, and graphics in its processor. ``tiles``:
    names of the folders of the driver i915; xe has "tile{tile}"."""
    for card, node in enumerate([None, *nodes]):
        bus_id = "0000:00:02.0" if node is None else f"0000:{0x18 + card:02x}:00.0"
        folder = on_bus(root, bus_id, "0x8086", node=node or 0)
        write(root, {f"dev/dri/renderD{128 + card}": ""})
        (folder / f"drm/renderD{128 + card}").mkdir(parents=True)
        for tile in range(2):
            (folder / tiles.format(card=card, tile=tile)).mkdir(parents=True)
    return root
