"""What the report says in words: how each trouble is made, what it found, what it leaves open."""

HOW = {
    "storms": (
        "Forked processes train a run of a second, storing every round, and are killed with "
        "SIGKILL: half of them after a random time, half just before a random touch of a file "
        "(open, rename, remove, mkdir, chmod, lock). After every kill the store is read and "
        "listed; after one to eight kills the work is let end, and its metrics file and every "
        "tensor are compared, byte by byte, with those of an undisturbed run."
    ),
    "sweeps": (
        "A sweep of three runs with shared first stages over two workers (forked, and not spawned "
        "as usual, with nothing open but their own pipe). Killed is one worker, the parent only, "
        "or all three at once, after a random time. Workers must end by themselves when their "
        "parent is gone; the same sweep is then let end and compared."
    ),
    "written": (
        "The same storms over whoever decodes a data set of 360 pictures into the cache, whose "
        "source changes between them, and over whoever exports results."
    ),
    "full": (
        "Where a tmpfs may be mounted: one with room for n pages, or for n files, for growing n "
        "until there is enough (else files limited in size by the kernel). Each time the act must "
        "end in one line that names folder and variable, or be done; then room is made and the "
        "same act must come to the right result."
    ),
    "readonly": (
        "A store with one run finished and one begun, and a decoded data set, sealed in two "
        "ways. What is there must be read; what needs to write must be refused in one line that "
        "names the folder and the variable (FEDLIB_RUNS, FEDLIB_RESULTS, FEDLIB_CACHE)."
    ),
    "rivals": (
        "Two or four processes begin at the same moment; rounds played and data sets decoded are "
        "counted over all of them. In the last row one of two is killed while it trains and the "
        "other waits."
    ),
    "files": (
        "Each case spoils one file: cut at a random place, a bit flipped, a stretch of garbage or "
        "zeros, all garbage; JSON with a hostile part (nested 100,000 deep, numbers of 5,000 "
        "digits, NaN, names of classes); safetensors headers that lie of lengths, places, shapes "
        "and kinds; Parquet files of other columns or kinds, and files of another kind. Children "
        "with limited memory and time read them, and watch for any process started or pickle "
        "opened. A damaged run is moved aside whole, and one of twenty is trained again and "
        "compared. A damaged spec is told in the list of runs, and nothing else reads it."
    ),
    "hyper": (
        "Every field of every public value is given numbers (negative, zero, not finite, huge), "
        "texts, containers, arrays and objects. It must refuse by name with a ValueError or a "
        "TypeError, or be a value that prints as code, has a key and reads back from code and "
        "from JSON."
    ),
    "odd": (
        "Every algorithm plays two rounds with everybody, and is evaluated; batches are larger "
        "than any client. All numbers must be finite, or the refusal clear."
    ),
}

FOUND = (
    "A flipped bit in stored metrics or in an exported result could change a number unnoticed. "
    "Parquet pages now carry checksums, which are compared when they are read; files without them "
    "are still read.",
    "A flipped bit in a checkpoint's weights went on into training unnoticed. Checkpoints now "
    "carry a CRC-32 of their tensors and of what is said of them.",
    "JSON nested deeper than Python's stack (spec, provenance, exported metadata) ended in a "
    "RecursionError and a run that could not be trained again. It is damage now, like all that a "
    "decoder raises of a file, but for a lack of memory.",
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
    "Fields of BiLSTM, FastText, FedRep, Densities, ClusteredFedMix and Optimizer were refused "
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
