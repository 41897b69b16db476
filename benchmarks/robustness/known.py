"""What the report says besides: what was found by this and mended, and what it leaves open."""

FOUND = (
    "A flipped bit in stored metrics or in an exported result could change a number unnoticed. "
    "Parquet pages now carry checksums, which are compared when they are read; files without them "
    "are still read.",
    "A flipped bit in a checkpoint's weights went on into training unnoticed. Checkpoints now "
    "carry a CRC-32 of their tensors and of what is said of them.",
    "JSON nested deeper than Python's stack (spec, provenance, exported metadata) ended in a "
    "RecursionError and a run that could not be trained again. It is damage now, like all that a "
    "decoder raises of a file, but for a lack of memory.",
    "JSON of a value, nested deep enough to be read and too deep to be rebuilt, ended in a "
    "RecursionError outside the store, too. It is a ValueError.",
    "Metrics whose columns held something else than numbers and text ended in a TypeError, and a "
    "failure.json of wrong types could not be told. Such runs are moved aside.",
    "An exported file with the spec of something else than an experiment ended in an "
    "AttributeError.",
    "A killed export left a temporary file in results/ for ever; the next export deletes it.",
    "A killed decoding of files that then changed, and a killed deletion of what an older state of "
    "them had left, stayed in the cache for ever; of data of one's own that were added again the "
    "older could be opened. Every data set has one place there, and the next decoding replaces "
    "whatever lies in it.",
    "FedMix with a client without examples in a cohort: its q(z|s) was 0 / 0, and that gave every "
    "client's experts the weight 0 in that round. It is uniform now.",
    "Whole numbers of any length were values that could not be printed, and errors quoted all of "
    "what was given. Whole numbers have at most 63 bits, and errors show the beginning.",
    "Choice took NaN and lists; EarlyStop.min_delta and every number of a recipe's Setting could "
    "be negative. They are refused.",
    "Fields of BiLSTM, FastText, FedRep, VAEDensity, ClusteredFedMix and Optimizer were refused "
    "without their names.",
)

UNPROTECTED = (
    "A flipped bit in provenance.json that leaves the JSON sound: seconds, versions and commits "
    "have no checksum there. No metric depends on them.",
    "Files stored before checksums were written: damage that their decoder does not see.",
    "A sound metrics file of another run, or of other numbers, that is put into a run's folder by "
    "hand: exported results carry their spec, metrics in a run folder do not.",
    "Decoded data whose bytes change under an unchanged size and time: opening a data set "
    "compares nothing else.",
    "Parquet files of a data set whose labels are changed by hand: their fingerprint is another, "
    "which every run stores and a checkpoint is compared with, but it cannot be known to be "
    "wrong.",
    "A crash of the machine while a data set is decoded into the cache: those files are renamed "
    "but not flushed, unlike those of runs and results.",
    "File systems without flock: where the lock falls back on a file's existence, a killed "
    "process leaves one behind that must be deleted by hand.",
    "Somebody who may write into the store and means harm: checksums are no signatures. What they "
    "can do is to change numbers, not to run code.",
    "Hyper-parameters that are legal and absurd, such as a layer of 10^12 units: they are values, "
    "and the machine refuses to build them.",
)
