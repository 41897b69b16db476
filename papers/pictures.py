"""Pictures of the papers' systems, by name, in the words of ``companion.pictures``.

Of FedMix, its pruning, opting out, clusters, the mixture over them, parts, PM-MoE and denoising.
"""

import json
from importlib.resources import files

from companion.pictures import Client, Picture

PICTURES = {
    name: Picture(**{**told, "clients": [Client(*words) for words in told["clients"]]})
    for name, told in json.loads(files("papers").joinpath("pictures.json").read_text()).items()
}
"""Each lies in ``docs/pictures/`` as it is drawn; ``pictures.json`` has their words."""
