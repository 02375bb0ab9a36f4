import os
import subprocess
import tempfile
import unittest

from google.protobuf import descriptor_pb2

from spanpool.engine.v1 import engine_pb2
from spanpool.link import CALLS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def described():
    """proto/ as protoc sees it."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", "-I", os.path.join(ROOT, "proto"), "--descriptor_set_out", out.name, "spanpool/engine/v1/engine.proto"],
                       check=True, timeout=60)
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    return found.file[0]


def without_json_names(f):
    """Versions of protoc differ in them."""
    def strip(messages):
        for m in messages:
            for field in m.field:
                field.ClearField("json_name")
            strip(m.nested_type)
    strip(f.message_type)
    return f


class ProtoTest(unittest.TestCase):
    def test_what_is_generated_is_current(self):
        have = descriptor_pb2.FileDescriptorProto.FromString(engine_pb2.DESCRIPTOR.serialized_pb)
        self.assertEqual(without_json_names(described()), without_json_names(have), "not current: sh scripts/proto-python.sh")

    def test_calls_have_the_replies_of_the_service(self):
        methods = engine_pb2.DESCRIPTOR.services_by_name["Engine"].methods_by_name
        for name, reply in CALLS.items():
            self.assertIs(methods[name].output_type, reply.DESCRIPTOR, name)


if __name__ == "__main__":
    unittest.main()
