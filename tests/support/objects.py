"""An S3 of a test's own (moto), which checks keys: 127.0.0.1, a free port, one bucket."""

import json
import logging
import urllib.request

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "taugrad-test"
_ALLOWED = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
_EVERYTHING = {"Version": "2012-10-17", "Statement": _ALLOWED}


class Objects:
    """A server with a user whose keys are `variables`; without them nobody reads or writes."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self._check_keys(False)
        self._post("reset")  # what a server has is the process's, and an earlier one may have left something
        self._administrator = {
            "endpoint_url": self.url,
            "region_name": "us-east-1",
            "aws_access_key_id": "administrator",
            "aws_secret_access_key": "-",
        }
        self._iam = boto3.client("iam", **self._administrator)
        boto3.client("s3", **self._administrator).create_bucket(Bucket=BUCKET)
        self._iam.create_user(UserName="trainer")
        key = self._iam.create_access_key(UserName="trainer")["AccessKey"]
        self.variables = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }
        """For the environment of whoever may write."""
        self.allow()

    def allow(self) -> None:
        """Lets the user's keys read and write everything."""
        self._check_keys(False)
        self._iam.put_user_policy(
            UserName="trainer", PolicyName="all", PolicyDocument=json.dumps(_EVERYTHING)
        )
        self._check_keys(True)

    def refuse(self) -> None:
        """Lets the user's keys do nothing, as if they had expired."""
        self._check_keys(False)
        self._iam.delete_user_policy(UserName="trainer", PolicyName="all")
        self._check_keys(True)

    def client(self) -> "boto3.client":
        """Amazon's own client, which is not the one that taugrad uses."""
        names = ("aws_access_key_id", "aws_secret_access_key")
        keys = {name: self.variables[name.upper()] for name in names}
        return boto3.client("s3", **self._administrator | keys)

    def names(self, prefix: str) -> list[str]:
        """Of the objects below a folder, without the empty ones that stand for folders."""
        result = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return [row["Key"] for row in result if not row["Key"].endswith("/")]

    def read(self, name: str) -> bytes:
        """An object."""
        return self.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()

    def write(self, name: str, data: bytes) -> None:
        """Replaces an object."""
        self.client().put_object(Bucket=BUCKET, Key=name, Body=data)

    def stop(self) -> None:
        """Ends the server."""
        self._server.stop()

    def _check_keys(self, on: bool) -> None:
        # How many requests go through before it checks.
        self._post("reset-auth", b"0" if on else b"1000000")

    def _post(self, what: str, data: bytes = b"") -> None:
        head = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/moto-api/{what}", data, head, method="POST")
        urllib.request.urlopen(request).close()
