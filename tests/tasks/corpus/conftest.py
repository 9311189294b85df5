import pytest


@pytest.fixture
def write(tmp_path):
    def write(name, data):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def replace_objects(bucket):
    """Replace the objects of a folder of the bucket."""

    def replace_objects(folder, objects):
        old_objects = bucket.list_objects_v2(Bucket="hallmark", Prefix=f"{folder}/").get(
            "Contents", []
        )
        for old_object in old_objects:
            bucket.delete_object(Bucket="hallmark", Key=old_object["Key"])
        for name, data in objects.items():
            bucket.put_object(Bucket="hallmark", Key=f"{folder}/{name}", Body=data)
        return f"s3://hallmark/{folder}"

    return replace_objects
