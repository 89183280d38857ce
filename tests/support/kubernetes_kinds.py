"""What Kubernetes and KubeRay take of the kinds that examples/clusters has, as JSON schemas.

Written by hand, with little more than the fields that the examples use, after Kubernetes' API reference and
KubeRay 1.7.0's definition of RayJob, helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml in its repository.
`of_definition` makes a schema of that file itself, for whoever has it.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
LABEL: Schema = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
PORT_NAME: Schema = {"type": "string", "pattern": r"^(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
QUANTITY: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
PATH: Schema = {"type": "string", "pattern": "^/"}
STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def fields(*required: str, **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def some(items: Schema) -> Schema:
    """A list that is not empty."""
    return {"type": "array", "items": items, "minItems": 1}


def one_of(*words: str) -> Schema:
    """One of some words."""
    return {"enum": list(words)}


METADATA = fields("name", name=LABEL, namespace=LABEL, labels=STRINGS, annotations=STRINGS)
AMOUNTS: Schema = {
    "type": "object",
    "propertyNames": one_of("cpu", "memory", "nvidia.com/gpu"),
    "additionalProperties": QUANTITY,
}
CONTAINER = fields(
    "name",
    "image",
    name=LABEL,
    image=STRING,
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    command=some(STRING),
    args=some(STRING),
    env=some(fields("name", "value", name=STRING, value={"type": "string"})),
    ports=some(fields("containerPort", name=PORT_NAME, containerPort=PORT)),
    readinessProbe=fields(
        "httpGet",
        httpGet=fields("port", path=PATH, port={"anyOf": [PORT, PORT_NAME]}),
        periodSeconds=PORT,
        timeoutSeconds=PORT,
    ),
    resources=fields(requests=AMOUNTS, limits=AMOUNTS),
    volumeMounts=some(fields("name", "mountPath", name=LABEL, mountPath=PATH, readOnly=BOOLEAN)),
)
VOLUME: Schema = fields(
    "name",
    name=LABEL,
    persistentVolumeClaim=fields("claimName", claimName=LABEL),
    emptyDir=fields(medium=one_of("", "Memory"), sizeLimit=QUANTITY),
    configMap=fields("name", name=LABEL),
) | {"minProperties": 2, "maxProperties": 2}
POD = fields(
    "spec",
    metadata=fields(labels=STRINGS),
    spec=fields(
        "containers",
        enableServiceLinks=BOOLEAN,
        securityContext=fields(runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT),
        containers=some(CONTAINER),
        volumes=some(VOLUME),
    ),
)
RAY_START = STRINGS  # what `ray start` gets; every value is text
RAY_CLUSTER = fields(
    "headGroupSpec",
    rayVersion=STRING,
    authOptions=fields("mode", mode=one_of("token", "disabled"), secretName=LABEL),
    headGroupSpec=fields("template", rayStartParams=RAY_START, template=POD),
    workerGroupSpecs=some(
        fields(
            "groupName",
            "template",
            groupName=LABEL,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            rayStartParams=RAY_START,
            template=POD,
        )
    ),
)


def _kind(version: str, kind: str, **properties: Schema) -> Schema:
    named = {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": METADATA}
    return fields(*named, *properties, **named, **properties)


KINDS: dict[str, Schema] = {
    "ConfigMap": _kind("v1", "ConfigMap", data=STRINGS),
    "PersistentVolumeClaim": _kind(
        "v1",
        "PersistentVolumeClaim",
        spec=fields(
            "accessModes",
            "resources",
            accessModes=some(one_of("ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod")),
            storageClassName={"type": "string"},
            resources=fields("requests", requests=fields("storage", storage=QUANTITY)),
        ),
    ),
    "Service": _kind(
        "v1",
        "Service",
        spec=fields(
            "ports",
            type=one_of("ClusterIP", "NodePort", "LoadBalancer"),
            selector=STRINGS,
            ports=some(
                fields("port", name=PORT_NAME, port=PORT, targetPort={"anyOf": [PORT, PORT_NAME]}),
            ),
        ),
    ),
    "Deployment": _kind(
        "apps/v1",
        "Deployment",
        spec=fields(
            "selector",
            "template",
            replicas=COUNT,
            strategy=fields("type", type=one_of("Recreate", "RollingUpdate")),
            selector=fields("matchLabels", matchLabels=STRINGS),
            template=POD,
        ),
    ),
    "RayJob": _kind(
        "ray.io/v1",
        "RayJob",
        spec=fields(
            "entrypoint",
            "rayClusterSpec",
            entrypoint=STRING,
            shutdownAfterJobFinishes=BOOLEAN,
            ttlSecondsAfterFinished=COUNT,
            backoffLimit=COUNT,
            activeDeadlineSeconds=PORT,
            submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
            runtimeEnvYAML=STRING,
            rayClusterSpec=RAY_CLUSTER,
        ),
    ),
}


def of_definition(definition: dict[str, Any], version: str) -> Schema:
    """The JSON schema in a CustomResourceDefinition; fields that it does not name are refused."""
    (there,) = (each for each in definition["spec"]["versions"] if each["name"] == version)
    schema = _strict(there["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = METADATA  # the definition leaves it to Kubernetes
    return schema


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {name: _strict(value) for name, value in node.items()}
    if isinstance(node.get("properties"), dict) and "additionalProperties" not in node:
        made["additionalProperties"] = bool(node.get("x-kubernetes-preserve-unknown-fields", False))
    return made
