"""The part of kustomize that deploy/kubernetes uses: resources, components and strategic merge patches.

`kubectl kustomize` builds the same, which a test sees where it is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

LISTS_BY_NAME = {"containers", "env", "volumes", "volumeMounts"}
"""Lists whose items are merged by their names. Any other list of a patch replaces the one that is there."""
HANDLED = {"apiVersion", "kind", "resources", "components", "patches"}


def build(folder: Path) -> list[Resource]:
    """Return what `kubectl apply -k` of a folder would send."""
    return _apply(folder, [])


def _apply(folder: Path, resources: list[Resource]) -> list[Resource]:
    """Return these resources with what a folder adds and changes."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = kustomization.keys() - HANDLED
    assert not unknown, f"{folder}: {unknown} is not handled here"
    for name in kustomization.get("resources", []):
        path = folder / name
        resources = [*resources, *(build(path) if path.is_dir() else read(path))]
    for name in kustomization.get("components", []):
        resources = _apply(folder / name, resources)
    for patch in kustomization.get("patches", []):
        (change,) = read(folder / patch["path"])
        (target,) = [resource for resource in resources if identity(resource) == identity(change)]
        resources = [merge(resource, change) if resource is target else resource for resource in resources]
    return resources


def read(path: Path) -> list[Resource]:
    """Return the documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def identity(resource: Resource) -> tuple[str, str]:
    """Return the kind and the name of a resource."""
    return resource["kind"], resource["metadata"]["name"]


def merge(resource: Resource, change: Resource) -> Resource:
    """Return a resource with a strategic merge patch. A value of null removes its field."""
    merged = dict(resource)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        elif key in LISTS_BY_NAME and key in merged:
            merged[key] = _merge_by_name(merged[key], value)
        else:
            merged[key] = value
    return merged


def _merge_by_name(items: list[Resource], changes: list[Resource]) -> list[Resource]:
    """Return the items with their changes. As in kustomize, those that a patch names come first."""
    present = {item["name"]: item for item in items}
    changed = [merge(present.get(change["name"], {}), change) for change in changes]
    named = {change["name"] for change in changes}
    return [*changed, *(item for item in items if item["name"] not in named)]
