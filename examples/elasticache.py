"""Logs in to ElastiCache by IAM: `PYTHONPATH=examples STREAMFLEET_REDIS_CREDENTIALS=elasticache:provider`.

Needs `pip install botocore`. Change the three names.
"""

from botocore.model import ServiceId
from botocore.session import get_session
from botocore.signers import RequestSigner
from redis import CredentialProvider

USER, CACHE, REGION = "streamfleet", "my-cache", "eu-central-1"
session = get_session()  # kept, because the signer does not keep it
context = session.get_credentials(), session.get_component("event_emitter")
signer = RequestSigner(ServiceId("elasticache"), REGION, "elasticache", "v4", *context)


class Provider(CredentialProvider):
    def get_credentials(self):
        # A serverless cache needs &ResourceType=ServerlessCache as well.
        url = f"https://{CACHE}/?Action=connect&User={USER}"
        request = {"method": "GET", "url": url, "body": {}, "headers": {}, "context": {}}
        token = signer.generate_presigned_url(request, "connect", expires_in=900)
        return USER, token.removeprefix("https://")


provider = Provider()
