package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Collections;
import java.util.List;

/** The bodies of control frames, one table of WIRE.md (section 5) or spec/extensions.md a class. */
public final class Messages {
    static final int MAX_INLINE_BYTES = 1 << 15;

    private static final Type<String> SHORT = Type.text(0, 64);
    private static final Type<String> DETAIL = Type.text(0, 1000);
    private static final Type<Double> SHARE = Type.number(0, false, 1);
    private static final Type<Double> POSITIVE = Type.number(0, false, Double.MAX_VALUE);
    private static final Type<Long> SEED = Type.integer(0, Long.MAX_VALUE);
    private static final Type<List<String>> NAMES = Type.list(Type.text(0, 256), 0, 4096);
    private static final Type<List<String>> WORDS = Type.list(SHORT, 0, 16);
    private static final Type<List<Long>> VERSIONS = Type.list(Type.integer(1, 255), 1, 16);
    private static final Type<byte[]> INLINE = Type.bytes(0, MAX_INLINE_BYTES);
    private static final Type<byte[]> BITMAP = Type.bytes(0, 512);
    private static final List<String> NO_WORDS = Collections.emptyList();
    private static final List<Long> FIRST = Collections.singletonList(1L);
    private static final byte[] NO_BYTES = {};

    private Messages() {}

    public static final class Hello {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<byte[]> NONCE = SCHEMA.required("nonce", Type.NONCE);
        public static final Field<String> VERSION = SCHEMA.required("version", SHORT);
        public static final Field<List<String>> BACKENDS = SCHEMA.optional("backends", WORDS, NO_WORDS);
        public static final Field<List<String>> COMPRESSIONS = SCHEMA.optional("compressions", WORDS, NO_WORDS);
        public static final Field<List<String>> CODECS = SCHEMA.optional("codecs", WORDS, NO_WORDS);
        public static final Field<Long> NUM_TRAIN = SCHEMA.optional("num_train", Type.COUNT, 0L);
        public static final Field<Long> NUM_TEST = SCHEMA.optional("num_test", Type.COUNT, 0L);
        public static final Field<Long> MEMORY_MB = SCHEMA.optional("memory_mb", Type.COUNT, 0L);
        public static final Field<List<Long>> VERSIONS = SCHEMA.optional("versions", Messages.VERSIONS, FIRST);
        public static final Field<String> WAITS = SCHEMA.optional("waits", DETAIL, "");
        public static final Field<List<String>> HOLDS =
                SCHEMA.optional("holds", Type.orNil(Type.list(Type.ID, 0, 16)), null);
    }

    public static final class Welcome {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<byte[]> NONCE = SCHEMA.required("nonce", Type.NONCE);
        public static final Field<String> VERSION = SCHEMA.required("version", SHORT);
        public static final Field<List<Long>> VERSIONS = SCHEMA.optional("versions", Messages.VERSIONS, FIRST);
        public static final Field<Long> DEVICES = SCHEMA.optional("devices", Type.COUNT, 0L);
        public static final Field<Long> MAX_PACKET = SCHEMA.optional("max_packet", Type.COUNT, 0L);
    }

    public static final class Goodbye {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<byte[]> NONCE = SCHEMA.required("nonce", Type.NONCE);
    }

    public static final class Training {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<Long> LOCAL_EPOCHS = SCHEMA.optional("local_epochs", Type.integer(1, 1000), 1L);
        public static final Field<Double> LEARNING_RATE =
                SCHEMA.optional("learning_rate", Type.number(0, true, 1000), 0.01);
        public static final Field<Double> MOMENTUM = SCHEMA.optional("momentum", below1(), 0.0);
        public static final Field<Double> PROX = SCHEMA.optional("prox", Type.number(0, false, 1e6), 0.0);
        public static final Field<String> LAST_BATCH =
                SCHEMA.optional("last_batch", Type.oneOf("pad", "fill", "drop"), "pad");
        public static final Field<List<String>> FREEZE = SCHEMA.optional("freeze", NAMES, NO_WORDS);
        public static final Field<String> OPTIMIZER =
                SCHEMA.optional("optimizer", Type.oneOf("sgd", "adam", "adamw"), "sgd");
        public static final Field<Boolean> NESTEROV = SCHEMA.optional("nesterov", Type.BOOL, false);
        public static final Field<Double> BETA1 = SCHEMA.optional("beta1", below1(), 0.9);
        public static final Field<Double> BETA2 = SCHEMA.optional("beta2", below1(), 0.999);
        public static final Field<Double> EPSILON = SCHEMA.optional("epsilon", Type.number(0, true, 1), 1e-8);
        public static final Field<Double> WEIGHT_DECAY =
                SCHEMA.optional("weight_decay", Type.number(0, false, 1000), 0.0);
        public static final Field<Double> CLIP_NORM = SCHEMA.optional("clip_norm", Type.number(0, false, 1e9), 0.0);
        public static final Field<String> OPTIMIZER_STATE =
                SCHEMA.optional("optimizer_state", Type.oneOf("reset", "keep"), "reset");
        public static final Field<Long> WARMUP_STEPS =
                SCHEMA.optional("warmup_steps", Type.integer(0, 100_000), 0L);
        public static final Field<Double> END_FACTOR =
                SCHEMA.optional("end_factor", Type.number(0, false, 1000), 1.0);
        public static final Field<Double> AVERAGE = SCHEMA.optional("average", SHARE, 0.0);

        private static Type<Double> below1() {
            return Type.number(0, false, Math.nextDown(1.0));
        }
    }

    public static final class OwnModel {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<Struct> TRAINING =
                SCHEMA.optional("training", Training.SCHEMA, Training.SCHEMA.empty());
        public static final Field<Double> MIX = SCHEMA.optional("mix", SHARE, 1.0);
        public static final Field<Boolean> ADAPTIVE = SCHEMA.optional("adaptive", Type.BOOL, false);
    }

    public static final class UpdateSelection {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<Double> FRACTION = SCHEMA.optional("fraction", Type.number(0, true, 1), 0.5);
        public static final Field<String> GRADIENT = SCHEMA.optional("gradient", Type.oneOf("last", "delta"), "last");
        public static final Field<Boolean> HESSIAN = SCHEMA.optional("hessian", Type.BOOL, false);
        public static final Field<Double> CUTOFF = SCHEMA.optional("cutoff", SHARE, 1e-10);
        public static final Field<Boolean> HALF = SCHEMA.optional("half", Type.BOOL, false);
    }

    public static final class DeviceScoring {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<Double> QUANTILE = SCHEMA.required("quantile", SHARE);
        public static final Field<String> SCORE =
                SCHEMA.optional("score", Type.oneOf("squared", "product", "gradient", "fisher"), "squared");
        public static final Field<String> NORM = SCHEMA.optional("norm", Type.oneOf("none", "global", "layer"), "none");
        public static final Field<List<String>> TENSORS = SCHEMA.optional("tensors", NAMES, NO_WORDS);
    }

    public static final class PatchChoice {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<Double> HOLDOUT =
                SCHEMA.required("holdout", Type.number(0, true, Math.nextDown(1.0)));
        public static final Field<Long> SEED = SCHEMA.optional("seed", Messages.SEED, 0L);
    }

    public static final class Codec {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<String> VALUES =
                SCHEMA.optional("values", Type.oneOf("fp32", "fp16", "bf16", "int8", "int4", "sign"), "fp32");
        public static final Field<Double> FRACTION = SCHEMA.optional("fraction", Type.number(0, true, 1), 1.0);
        public static final Field<Double> THRESHOLD = SCHEMA.optional("threshold", Type.number(0, false, 1e6), 0.0);
        public static final Field<String> COMPRESSION =
                SCHEMA.optional("compression", Type.oneOf("zstd", "zlib", "none"), "zstd");
        public static final Field<Boolean> ERROR_FEEDBACK = SCHEMA.optional("error_feedback", Type.BOOL, true);
    }

    public static final class Step {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<byte[]> BASE_HASH = SCHEMA.required("base_hash", Type.HASH);
        public static final Field<Manifest> BLOB = SCHEMA.required("blob", Manifest.TYPE);
    }

    public static final class Place {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
        public static final Field<String> URL = SCHEMA.required("url", Type.text(0, 2048));
    }

    public static final class Work {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<List<String>> KEEP = SCHEMA.optional("keep", NAMES, NO_WORDS);
        public static final Field<Boolean> UPLOAD = SCHEMA.optional("upload", Type.BOOL, true);
        public static final Field<Struct> TRAINING = SCHEMA.optional("training", Type.orNil(Training.SCHEMA), null);
        public static final Field<List<Struct>> THEN =
                SCHEMA.optional("then", Type.list(Training.SCHEMA, 0, 8), Collections.emptyList());
        public static final Field<Struct> OWN_MODEL = SCHEMA.optional("own_model", Type.orNil(OwnModel.SCHEMA), null);
        public static final Field<Struct> SELECT =
                SCHEMA.optional("select", Type.orNil(UpdateSelection.SCHEMA), null);
        public static final Field<Struct> SCORING = SCHEMA.optional("scoring", Type.orNil(DeviceScoring.SCHEMA), null);
        public static final Field<Struct> CHOICE = SCHEMA.optional("choice", Type.orNil(PatchChoice.SCHEMA), null);
        public static final Field<Boolean> REMEMBER = SCHEMA.optional("remember", Type.BOOL, false);
    }

    public static final class Order {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<String> TASK = SCHEMA.required("task", Type.oneOf("train", "evaluate"));
        public static final Field<Manifest> BUNDLE = SCHEMA.required("bundle", Manifest.TYPE);
        public static final Field<Manifest> MODEL = SCHEMA.required("model", Manifest.TYPE);
        public static final Field<byte[]> MODEL_HASH = SCHEMA.required("model_hash", Type.HASH);
        public static final Field<List<Struct>> STEPS =
                SCHEMA.optional("steps", Type.list(Step.SCHEMA, 0, 32), Collections.emptyList());
        public static final Field<byte[]> PATCH = SCHEMA.optional("patch", INLINE, NO_BYTES);
        public static final Field<Manifest> PATCH_BLOB = SCHEMA.optional("patch_blob", Type.orNil(Manifest.TYPE), null);
        public static final Field<byte[]> PATCH_HASH = SCHEMA.optional("patch_hash", Type.bytes(0, 32), NO_BYTES);
        public static final Field<Manifest> PATCH_CONTEXT =
                SCHEMA.optional("patch_context", Type.orNil(Manifest.TYPE), null);
        public static final Field<Manifest> CORRECTION = SCHEMA.optional("correction", Type.orNil(Manifest.TYPE), null);
        public static final Field<List<Struct>> PLACES =
                SCHEMA.optional("places", Type.list(Place.SCHEMA, 0, 8), Collections.emptyList());
        public static final Field<Struct> WORK = SCHEMA.optional("work", Work.SCHEMA, Work.SCHEMA.empty());
        public static final Field<Struct> CODEC = SCHEMA.optional("codec", Codec.SCHEMA, Codec.SCHEMA.empty());
        public static final Field<byte[]> CONTEXT = SCHEMA.optional("context", Type.bytes(0, 32), NO_BYTES);
        public static final Field<Long> SEED = SCHEMA.optional("seed", Messages.SEED, 0L);
    }

    /** Which order it is: all that can be read of one with a value that is not known. */
    public static final class OrderName {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
    }

    public static final class Cancel {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.COUNT);
        public static final Field<String> REASON = SCHEMA.required("reason", DETAIL);
    }

    public static final class Decline {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<String> REASON = SCHEMA.required("reason", SHORT);
        public static final Field<String> DETAIL = SCHEMA.optional("detail", Messages.DETAIL, "");
    }

    public static final class Offer {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Manifest> MANIFEST = SCHEMA.required("manifest", Manifest.TYPE);
        public static final Field<Long> NUMBER = SCHEMA.required("number", Type.COUNT);
        public static final Field<byte[]> DATA = SCHEMA.optional("data", INLINE, NO_BYTES);
    }

    public static final class Have {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<Long> NUMBER = SCHEMA.required("number", Type.COUNT);
        public static final Field<byte[]> BITMAP = SCHEMA.required("bitmap", Messages.BITMAP);
        public static final Field<Long> CREDIT = SCHEMA.required("credit", Type.integer(1, 64));
    }

    public static final class Committed {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
        public static final Field<Boolean> LATE = SCHEMA.optional("late", Type.BOOL, false);
    }

    public static final class Reject {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
        public static final Field<String> REASON = SCHEMA.required("reason", SHORT);
        public static final Field<String> DETAIL = SCHEMA.optional("detail", Messages.DETAIL, "");
    }

    public static final class Busy {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<Long> RETRY_MS = SCHEMA.required("retry_ms", Type.COUNT);
        public static final Field<String> REASON = SCHEMA.optional("reason", SHORT, "");
    }

    public static final class Get {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<byte[]> MISSING = SCHEMA.required("missing", BITMAP);
    }

    public static final class Refusal {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<String> REASON = SCHEMA.required("reason", SHORT);
        public static final Field<String> DETAIL = SCHEMA.optional("detail", Messages.DETAIL, "");
    }

    public static final class Metrics {
        public static final Schema SCHEMA = Schema.whole();
        public static final Field<Double> LOSS = SCHEMA.required("loss", Type.FINITE);
        public static final Field<Double> METRIC = SCHEMA.required("metric", Type.FINITE);
        public static final Field<Long> NUM_EXAMPLES = SCHEMA.required("num_examples", Type.COUNT);
    }

    /** The head of an update (WIRE.md, section 9). */
    public static final class Report {
        public static final Schema SCHEMA = Schema.sparse();
        public static final Field<String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<String> TASK = SCHEMA.required("task", Type.oneOf("train", "evaluate"));
        public static final Field<byte[]> LAYOUT_HASH = SCHEMA.required("layout_hash", Type.HASH);
        public static final Field<byte[]> MODEL_HASH = SCHEMA.required("model_hash", Type.HASH);
        public static final Field<byte[]> PATCH_HASH = SCHEMA.optional("patch_hash", Type.bytes(0, 32), NO_BYTES);
        public static final Field<Long> NUM_EXAMPLES = SCHEMA.required("num_examples", Type.COUNT);
        public static final Field<Struct> BEFORE = SCHEMA.required("before", Metrics.SCHEMA);
        public static final Field<Struct> AFTER = SCHEMA.required("after", Metrics.SCHEMA);
        public static final Field<Double> TRAIN_LOSS = SCHEMA.required("train_loss", Type.FINITE);
        public static final Field<Long> STEPS = SCHEMA.required("steps", Type.COUNT);
        public static final Field<Double> SECONDS = SCHEMA.required("seconds", POSITIVE);
        public static final Field<Double> MIX = SCHEMA.optional("mix", Type.orNil(SHARE), null);
        public static final Field<Struct> SPARSE = SCHEMA.optional("sparse", Type.orNil(Metrics.SCHEMA), null);
        public static final Field<Boolean> PATCHED = SCHEMA.optional("patched", Type.orNil(Type.BOOL), null);
        public static final Field<Double> STEP_S = SCHEMA.optional("step_s", Type.orNil(POSITIVE), null);
        public static final Field<Double> TEMPERATURE_C = SCHEMA.optional("temperature_c", Type.orNil(Type.FINITE), null);
        public static final Field<Double> ENERGY_J = SCHEMA.optional("energy_j", Type.orNil(POSITIVE), null);
        public static final Field<Long> HTTP_BYTES = SCHEMA.optional("http_bytes", Type.COUNT, 0L);
    }
}
