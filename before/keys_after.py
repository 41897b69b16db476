import json
from companion.plan import planned
from papers.book import BOOK
print(json.dumps({sc:sorted([p.section,p.dataset,p.experiment.seed,p.experiment.key] for p in planned(BOOK,sc)) for sc in ("quick","standard","paper")}))
