"""A real S3 endpoint on this machine, moto's server, for tests of studies that are kept in a bucket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.groups import wait_until
from tests.support.ports import free_port, listens
from tests.support.studies import environment

KEYS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing-in-particular"}
BUCKET = "studies"


class ObjectStore:
    """The server, with one bucket unless it is to be empty. It forgets all when it ends."""

    def __init__(self, folder: Path, *, empty: bool = False) -> None:
        self.port = free_port()
        with (folder / "store.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                env=environment(**KEYS),
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: listens(self.port), seconds=60)
        self.client = self._client()
        if not empty:
            self.client.create_bucket(Bucket=BUCKET)

    def uri(self, path: str, bucket: str = BUCKET, port: int | None = None) -> str:
        """As a spec names it. port: of what stands before the server."""
        endpoint = f"127.0.0.1:{port or self.port}"
        return f"s3://{bucket}/{path}?scheme=http&endpoint_override={endpoint}&region=us-east-1"

    def names(self, prefix: str = "") -> list[str]:
        """The objects that are there, but those that only stand for a folder."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        found = [each["Key"] for page in pages for each in page.get("Contents", ())]
        return [name for name in found if not name.endswith("/")]

    def read(self, name: str) -> bytes:
        """What an object holds."""
        return bytes(self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read())

    def unfinished(self) -> list[str]:
        """The objects whose upload has begun and has not ended."""
        found = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        return [each["Key"] for each in found]

    def stop(self) -> None:
        """Ends the server, and with it all that it holds."""
        self.process.kill()
        self.process.wait(20)

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
