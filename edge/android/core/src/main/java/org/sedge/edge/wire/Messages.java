// Written by `make spec` from the Python code: changes here are lost.
package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Collections;
import java.util.List;
import java.util.Map;

/** The bodies of control frames, the head of an update, and what they hold (WIRE.md, section 5). */
public final class Messages {
    static final int MAX_INLINE_BYTES = 32768;

    private Messages() {}

    /** How a device trains. */
    public static final class Training extends Struct<Training> {
        public static final Schema<Training> SCHEMA = new Schema<Training>(true) {
            @Override
            protected Training make(Object[] given) {
                return new Training(given);
            }
        };
        public static final Field<Training, Long> LOCAL_EPOCHS =
                SCHEMA.optional("local_epochs", Type.integer(1, 1000), 1L);
        public static final Field<Training, Double> LEARNING_RATE =
                SCHEMA.optional("learning_rate", Type.number(0, true, 1000.0), 0.01);
        public static final Field<Training, Double> MOMENTUM =
                SCHEMA.optional("momentum", Type.number(0, false, Math.nextDown(1.0)), 0.0);
        public static final Field<Training, Double> PROX =
                SCHEMA.optional("prox", Type.number(0, false, 1000000.0), 0.0);
        public static final Field<Training, String> LAST_BATCH =
                SCHEMA.optional("last_batch", Type.oneOf("drop", "fill", "pad"), "pad");
        public static final Field<Training, List<String>> FREEZE =
                SCHEMA.optional("freeze", Type.list(Type.text(0, 256), 0, 4096), Collections.emptyList());
        public static final Field<Training, String> OPTIMIZER =
                SCHEMA.optional("optimizer", Type.oneOf("adam", "adamw", "sgd"), "sgd");
        public static final Field<Training, Boolean> NESTEROV = SCHEMA.optional("nesterov", Type.BOOL, false);
        public static final Field<Training, Double> BETA1 =
                SCHEMA.optional("beta1", Type.number(0, false, Math.nextDown(1.0)), 0.9);
        public static final Field<Training, Double> BETA2 =
                SCHEMA.optional("beta2", Type.number(0, false, Math.nextDown(1.0)), 0.999);
        public static final Field<Training, Double> EPSILON =
                SCHEMA.optional("epsilon", Type.number(0, true, 1.0), 1e-08);
        public static final Field<Training, Double> WEIGHT_DECAY =
                SCHEMA.optional("weight_decay", Type.number(0, false, 1000.0), 0.0);
        public static final Field<Training, Double> CLIP_NORM =
                SCHEMA.optional("clip_norm", Type.number(0, false, 1000000000.0), 0.0);
        public static final Field<Training, String> OPTIMIZER_STATE =
                SCHEMA.optional("optimizer_state", Type.oneOf("keep", "reset"), "reset");
        public static final Field<Training, Long> WARMUP_STEPS =
                SCHEMA.optional("warmup_steps", Type.integer(0, 100000), 0L);
        public static final Field<Training, Double> END_FACTOR =
                SCHEMA.optional("end_factor", Type.number(0, false, 1000.0), 1.0);
        public static final Field<Training, Double> AVERAGE =
                SCHEMA.optional("average", Type.number(0, false, 1.0), 0.0);

        /** Number of passes over its own examples that a device makes per round. */
        public final long localEpochs;
        /** Learning rate, before warm-up and schedule are applied. */
        public final double learningRate;
        /** Momentum of {@code sgd}; must be 0 for the other optimizers. */
        public final double momentum;
        /** Strength of the pull towards the round's start model (FedProx's mu); 0 turns it off. */
        public final double prox;
        /**
         * What happens to the last partial batch: {@code pad} it with rows of weight zero, {@code fill} it from the
         * start of the epoch, or {@code drop} it.
         */
        public final String lastBatch;
        /** Names of tensors that training leaves unchanged. */
        public final List<String> freeze;
        /** Optimizer that every device trains with. */
        public final String optimizer;
        /** Use Nesterov's form of momentum; needs {@code momentum} above 0. */
        public final boolean nesterov;
        /** Decay rate of the mean gradient in {@code adam} and {@code adamw}. */
        public final double beta1;
        /** Decay rate of the mean squared gradient in {@code adam} and {@code adamw}. */
        public final double beta2;
        /** Small number that {@code adam} and {@code adamw} add to the denominator, to avoid division by zero. */
        public final double epsilon;
        /**
         * Strength of weight decay; it is added to the gradient or, with {@code adamw}, shrinks the weights directly.
         */
        public final double weightDecay;
        /** Maximum L2 norm of each step's gradient; longer gradients are scaled down, and 0 sets no limit. */
        public final double clipNorm;
        /**
         * Optimizer's state at the start of a round: {@code reset} for zeros, {@code keep} for the state after the
         * device's last round.
         */
        public final String optimizerState;
        /**
         * Number of initial steps in each training phase over which the learning rate grows linearly to its full value.
         */
        public final long warmupSteps;
        /** Factor that the learning rate moves towards, linearly, over the steps of each training phase. */
        public final double endFactor;
        /**
         * Share of each training phase's steps, counted from its end, whose average model the device evaluates, keeps
         * and predicts with; 0 turns it off.
         */
        public final double average;

        private Training(Object[] given) {
            super(SCHEMA, given);
            localEpochs = LOCAL_EPOCHS.in(given);
            learningRate = LEARNING_RATE.in(given);
            momentum = MOMENTUM.in(given);
            prox = PROX.in(given);
            lastBatch = LAST_BATCH.in(given);
            freeze = FREEZE.in(given);
            optimizer = OPTIMIZER.in(given);
            nesterov = NESTEROV.in(given);
            beta1 = BETA1.in(given);
            beta2 = BETA2.in(given);
            epsilon = EPSILON.in(given);
            weightDecay = WEIGHT_DECAY.in(given);
            clipNorm = CLIP_NORM.in(given);
            optimizerState = OPTIMIZER_STATE.in(given);
            warmupSteps = WARMUP_STEPS.in(given);
            endFactor = END_FACTOR.in(given);
            average = AVERAGE.in(given);
        }
    }

    /** The personal model, a second model, which stays on the device. */
    public static final class OwnModel extends Struct<OwnModel> {
        public static final Schema<OwnModel> SCHEMA = new Schema<OwnModel>(true) {
            @Override
            protected OwnModel make(Object[] given) {
                return new OwnModel(given);
            }
        };
        public static final Field<OwnModel, Training> TRAINING =
                SCHEMA.optional("training", Training.SCHEMA, Training.SCHEMA.empty());
        public static final Field<OwnModel, Double> MIX = SCHEMA.optional("mix", Type.number(0, false, 1.0), 1.0);
        public static final Field<OwnModel, Boolean> ADAPTIVE = SCHEMA.optional("adaptive", Type.BOOL, false);

        /** How the personal model is trained, unless it is part of a mixture. */
        public final Training training;
        /** The personal component's share of the mixture; 1: no mixture, unless {@code adaptive}. */
        public final double mix;
        /** Whether the device also trains {@code mix}, by gradient descent, and reports its final value. */
        public final boolean adaptive;

        private OwnModel(Object[] given) {
            super(SCHEMA, given);
            training = TRAINING.in(given);
            mix = MIX.in(given);
            adaptive = ADAPTIVE.in(given);
        }
    }

    /** A device sends the elements on which its loss depends most, tensor by tensor (FedPURIN, FedCAC). */
    public static final class UpdateSelection extends Struct<UpdateSelection> {
        public static final Schema<UpdateSelection> SCHEMA = new Schema<UpdateSelection>(true) {
            @Override
            protected UpdateSelection make(Object[] given) {
                return new UpdateSelection(given);
            }
        };
        public static final Field<UpdateSelection, Double> FRACTION =
                SCHEMA.optional("fraction", Type.number(0, true, 1.0), 0.5);
        public static final Field<UpdateSelection, String> GRADIENT =
                SCHEMA.optional("gradient", Type.oneOf("delta", "last"), "last");
        public static final Field<UpdateSelection, Boolean> HESSIAN = SCHEMA.optional("hessian", Type.BOOL, false);
        public static final Field<UpdateSelection, Double> CUTOFF =
                SCHEMA.optional("cutoff", Type.number(0, false, 1.0), 1e-10);
        public static final Field<UpdateSelection, Boolean> HALF = SCHEMA.optional("half", Type.BOOL, false);

        /** The share of each tensor's elements that is sent, rounded down. */
        public final double fraction;
        /**
         * {@code last}: g is the gradient of the last batch's mean loss, before its step, as the program returns it,
         * but 0 in tensors that {@code freeze} names; {@code delta}: g is trained - start.
         */
        public final String gradient;
        /** Whether to add the second-order term to c. */
        public final boolean hessian;
        /** Elements with c at or below this number, rounded to binary32, are not sent. */
        public final double cutoff;
        /** Whether to round g first to the nearest binary16 from -65504 to 65504, as in the authors' code. */
        public final boolean half;

        private UpdateSelection(Object[] given) {
            super(SCHEMA, given);
            fraction = FRACTION.in(given);
            gradient = GRADIENT.in(given);
            hessian = HESSIAN.in(given);
            cutoff = CUTOFF.in(given);
            half = HALF.in(given);
        }
    }

    /** The device finds its personal elements itself, by scoring the model that it trained last. */
    public static final class DeviceScoring extends Struct<DeviceScoring> {
        public static final Schema<DeviceScoring> SCHEMA = new Schema<DeviceScoring>(true) {
            @Override
            protected DeviceScoring make(Object[] given) {
                return new DeviceScoring(given);
            }
        };
        public static final Field<DeviceScoring, Double> QUANTILE =
                SCHEMA.required("quantile", Type.number(0, false, 1.0));
        public static final Field<DeviceScoring, String> SCORE =
                SCHEMA.optional("score", Type.oneOf("fisher", "gradient", "product", "squared"), "squared");
        public static final Field<DeviceScoring, String> NORM =
                SCHEMA.optional("norm", Type.oneOf("global", "layer", "none"), "none");
        public static final Field<DeviceScoring, List<String>> TENSORS =
                SCHEMA.optional("tensors", Type.list(Type.text(0, 256), 0, 4096), Collections.emptyList());

        /** Elements that score above this quantile of all scores are personal. */
        public final double quantile;
        /**
         * {@code squared}: (own - model)²; {@code product}: abs((own - model) · own); {@code gradient}: abs(g); {@code
         * fisher}: g², where g is the gradient {@code last} of X5, from the previous order.
         */
        public final String score;
        /**
         * {@code layer} replaces a score by (score - least) / (greatest - least) within its tensor, or by 0 if all are
         * equal; {@code global} is {@code none}.
         */
        public final String norm;
        /** The tensors that are scored; empty: all tensors with the role {@code parameter}. */
        public final List<String> tensors;

        private DeviceScoring(Object[] given) {
            super(SCHEMA, given);
            quantile = QUANTILE.in(given);
            score = SCORE.in(given);
            norm = NORM.in(given);
            tensors = TENSORS.in(given);
        }
    }

    /** The device tests its patch on examples that it does not train on, to decide whether to apply it. */
    public static final class PatchChoice extends Struct<PatchChoice> {
        public static final Schema<PatchChoice> SCHEMA = new Schema<PatchChoice>(true) {
            @Override
            protected PatchChoice make(Object[] given) {
                return new PatchChoice(given);
            }
        };
        public static final Field<PatchChoice, Double> HOLDOUT =
                SCHEMA.required("holdout", Type.number(0, true, Math.nextDown(1.0)));
        public static final Field<PatchChoice, Long> SEED =
                SCHEMA.optional("seed", Type.integer(0, Long.MAX_VALUE), 0L);

        /** The share of the training examples that is held out; the report's {@code num_examples} counts the others. */
        public final double holdout;
        /** The seed that selects the held-out examples; the same in every order of a run. */
        public final long seed;

        private PatchChoice(Object[] given) {
            super(SCHEMA, given);
            holdout = HOLDOUT.in(given);
            seed = SEED.in(given);
        }
    }

    /** The device predicts with mix * own + (1 - mix) * theta. */
    public static final class Blend extends Struct<Blend> {
        public static final Schema<Blend> SCHEMA = new Schema<Blend>(true) {
            @Override
            protected Blend make(Object[] given) {
                return new Blend(given);
            }
        };
        public static final Field<Blend, Double> MIX =
                SCHEMA.required("mix", Type.number(0, false, Math.nextDown(1.0)));
        public static final Field<Blend, String> PRIOR = SCHEMA.optional("prior", Type.text(0, 256), "");

        /** The share of the device's own last model. */
        public final double mix;
        /** The bias of the head, one element per class; empty: nothing is added. */
        public final String prior;

        private Blend(Object[] given) {
            super(SCHEMA, given);
            mix = MIX.in(given);
            prior = PRIOR.in(given);
        }
    }

    /** How a device encodes its update. */
    public static final class Codec extends Struct<Codec> {
        public static final Schema<Codec> SCHEMA = new Schema<Codec>(true) {
            @Override
            protected Codec make(Object[] given) {
                return new Codec(given);
            }
        };
        public static final Field<Codec, String> VALUES =
                SCHEMA.optional("values", Type.oneOf("fp32", "fp16", "bf16", "int8", "int4", "sign"), "fp32");
        public static final Field<Codec, Double> FRACTION = SCHEMA.optional("fraction", Type.number(0, true, 1.0), 1.0);
        public static final Field<Codec, Double> THRESHOLD =
                SCHEMA.optional("threshold", Type.number(0, false, 1000000.0), 0.0);
        public static final Field<Codec, String> COMPRESSION =
                SCHEMA.optional("compression", Type.oneOf("zstd", "zlib", "none"), "zstd");
        public static final Field<Codec, Boolean> ERROR_FEEDBACK = SCHEMA.optional("error_feedback", Type.BOOL, true);

        /** The precision of the values; {@code int4} and {@code sign} are extensions. */
        public final String values;
        /** The share of the elements that is sent, the largest in magnitude; at least one element. */
        public final double fraction;
        /** Of the elements that {@code fraction} selects, only those of at least this magnitude are sent; 0: all. */
        public final double threshold;
        /** How the coded vector is compressed. */
        public final String compression;
        /** Whether the next round's delta includes what was not sent (T9). */
        public final boolean errorFeedback;

        private Codec(Object[] given) {
            super(SCHEMA, given);
            values = VALUES.in(given);
            fraction = FRACTION.in(given);
            threshold = THRESHOLD.in(given);
            compression = COMPRESSION.in(given);
            errorFeedback = ERROR_FEEDBACK.in(given);
        }
    }

    /** A coded delta that turns one version of the global model into the next one. */
    public static final class Step extends Struct<Step> {
        public static final Schema<Step> SCHEMA = new Schema<Step>(false) {
            @Override
            protected Step make(Object[] given) {
                return new Step(given);
            }
        };
        public static final Field<Step, byte[]> BASE_HASH = SCHEMA.required("base_hash", Type.HASH);
        public static final Field<Step, Manifest> BLOB = SCHEMA.required("blob", Manifest.SCHEMA);

        /** The version that the delta is added to. */
        public final byte[] baseHash;
        /** The delta, a coded vector. */
        public final Manifest blob;

        private Step(Object[] given) {
            super(SCHEMA, given);
            baseHash = BASE_HASH.in(given);
            blob = BLOB.in(given);
        }
    }

    /** A URL, http:// or https://, from which the blob with this SHA-256 can also be downloaded. */
    public static final class Place extends Struct<Place> {
        public static final Schema<Place> SCHEMA = new Schema<Place>(false) {
            @Override
            protected Place make(Object[] given) {
                return new Place(given);
            }
        };
        public static final Field<Place, byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
        public static final Field<Place, String> URL = SCHEMA.required("url", Type.text(0, 2048));

        /** One of the order's blobs, including its bundle's {@code frozen}; any other is ignored. */
        public final byte[] sha256;
        /**
         * A GET of this URL returns the blob's bytes: {@code http://} or {@code https://}, printable ASCII, no user, no
         * fragment. Any other is ignored.
         */
        public final String url;

        private Place(Object[] given) {
            super(SCHEMA, given);
            sha256 = SHA256.in(given);
            url = URL.in(given);
        }
    }

    /** What a strategy asks of a device in one round, in addition to the vector that it starts from. */
    public static final class Work extends Struct<Work> {
        public static final Schema<Work> SCHEMA = new Schema<Work>(true) {
            @Override
            protected Work make(Object[] given) {
                return new Work(given);
            }
        };
        public static final Field<Work, List<String>> KEEP =
                SCHEMA.optional("keep", Type.list(Type.text(0, 256), 0, 4096), Collections.emptyList());
        public static final Field<Work, Boolean> UPLOAD = SCHEMA.optional("upload", Type.BOOL, true);
        public static final Field<Work, Training> TRAINING =
                SCHEMA.optional("training", Type.orNil(Training.SCHEMA), null);
        public static final Field<Work, List<Training>> THEN =
                SCHEMA.optional("then", Type.list(Training.SCHEMA, 0, 8), Collections.emptyList());
        public static final Field<Work, OwnModel> OWN_MODEL =
                SCHEMA.optional("own_model", Type.orNil(OwnModel.SCHEMA), null);
        public static final Field<Work, UpdateSelection> SELECT =
                SCHEMA.optional("select", Type.orNil(UpdateSelection.SCHEMA), null);
        public static final Field<Work, DeviceScoring> SCORING =
                SCHEMA.optional("scoring", Type.orNil(DeviceScoring.SCHEMA), null);
        public static final Field<Work, PatchChoice> CHOICE =
                SCHEMA.optional("choice", Type.orNil(PatchChoice.SCHEMA), null);
        public static final Field<Work, Blend> BLEND = SCHEMA.optional("blend", Type.orNil(Blend.SCHEMA), null);
        public static final Field<Work, Boolean> REMEMBER = SCHEMA.optional("remember", Type.BOOL, false);
        public static final Field<Work, String> LOSS = SCHEMA.optional("loss", Type.text(0, 256), "");
        public static final Field<Work, Map<String, Object>> SETTINGS =
                SCHEMA.optional("settings", Type.map(Type.either(Type.BOOL, Type.integer(-9007199254740992L,
                9007199254740992L), Type.FINITE, Type.text(0, 256)), 32), Collections.emptyMap());
        public static final Field<Work, Map<String, byte[]>> ARRAYS =
                SCHEMA.optional("arrays", Type.map(Type.bytes(0, 32768), 16), Collections.emptyMap());
        public static final Field<Work, Map<String, Long>> RETURNS =
                SCHEMA.optional("returns", Type.map(Type.integer(1, 8192), 16), Collections.emptyMap());

        /** The tensors that the device takes from its own last model (T1) and whose delta it sends as 0 (T3). */
        public final List<String> keep;
        /** Whether the update has a payload; without one the device sends only metrics. */
        public final boolean upload;
        /** How the device trains; nil: with the defaults. */
        public final Training training;
        /** Extension {@code phases}: further training phases, each of which continues from the one before. */
        public final List<Training> then;
        /** Extension {@code own_model}: a second model, which stays on the device. */
        public final OwnModel ownModel;
        /** Extension {@code select}: which elements of the update the device sends. */
        public final UpdateSelection select;
        /** Extension {@code scoring}: how the device itself finds its personal elements. */
        public final DeviceScoring scoring;
        /** Extension {@code choice}: how the device decides whether to apply its patch. */
        public final PatchChoice choice;
        /** Extension {@code blend}: the device predicts with a mean over its rounds. */
        public final Blend blend;
        /** Extension {@code remember}: the device keeps what it sent as a patch that a later order can name. */
        public final boolean remember;
        /**
         * Extension {@code loss}: the name of the bundle's guided loss, which trains the model that is sent; empty: the
         * bundle's own loss.
         */
        public final String loss;
        /** Extension {@code settings}: numbers and strings by name, for the device's own training function. */
        public final Map<String, Object> settings;
        /** Extension {@code arrays}: small arrays by name, each as float32, little endian. */
        public final Map<String, byte[]> arrays;
        /** Extension {@code arrays}: the arrays that the update must have, each with its number of elements. */
        public final Map<String, Long> returns;

        private Work(Object[] given) {
            super(SCHEMA, given);
            keep = KEEP.in(given);
            upload = UPLOAD.in(given);
            training = TRAINING.in(given);
            then = THEN.in(given);
            ownModel = OWN_MODEL.in(given);
            select = SELECT.in(given);
            scoring = SCORING.in(given);
            choice = CHOICE.in(given);
            blend = BLEND.in(given);
            remember = REMEMBER.in(given);
            loss = LOSS.in(given);
            settings = SETTINGS.in(given);
            arrays = ARRAYS.in(given);
            returns = RETURNS.in(given);
        }
    }

    /** A device has (re)connected; it describes itself and what it can do. */
    public static final class Hello extends Struct<Hello> {
        public static final Schema<Hello> SCHEMA = new Schema<Hello>(true) {
            @Override
            protected Hello make(Object[] given) {
                return new Hello(given);
            }
        };
        public static final Field<Hello, byte[]> NONCE = SCHEMA.required("nonce", Type.NONCE);
        public static final Field<Hello, String> VERSION = SCHEMA.required("version", Type.text(0, 64));
        public static final Field<Hello, List<String>> BACKENDS =
                SCHEMA.optional("backends", Type.list(Type.text(0, 64), 0, 16), Collections.emptyList());
        public static final Field<Hello, List<String>> COMPRESSIONS =
                SCHEMA.optional("compressions", Type.list(Type.text(0, 64), 0, 16), Collections.emptyList());
        public static final Field<Hello, List<String>> CODECS =
                SCHEMA.optional("codecs", Type.list(Type.text(0, 64), 0, 32), Collections.emptyList());
        public static final Field<Hello, Long> NUM_TRAIN = SCHEMA.optional("num_train", Type.COUNT, 0L);
        public static final Field<Hello, Long> NUM_TEST = SCHEMA.optional("num_test", Type.COUNT, 0L);
        public static final Field<Hello, Long> MEMORY_MB = SCHEMA.optional("memory_mb", Type.COUNT, 0L);
        public static final Field<Hello, List<Long>> VERSIONS =
                SCHEMA.optional("versions", Type.list(Type.integer(1, 255), 1, 16), Collections.singletonList(1L));
        public static final Field<Hello, String> WAITS = SCHEMA.optional("waits", Type.text(0, 1000), "");
        public static final Field<Hello, Long> MAX_PACKET = SCHEMA.optional("max_packet", Type.COUNT, 0L);
        public static final Field<Hello, byte[]> PADDING =
                SCHEMA.optional("padding", Type.bytes(0, 262144), new byte[0]);
        public static final Field<Hello, List<String>> HOLDS =
                SCHEMA.optional("holds", Type.orNil(Type.list(Type.ID, 0, 16)), null);
        public static final Field<Hello, Boolean> LEAVES = SCHEMA.optional("leaves", Type.BOOL, false);
        public static final Field<Hello, byte[]> CERTIFICATE =
                SCHEMA.optional("certificate", Type.bytes(0, 16), new byte[0]);
        public static final Field<Hello, byte[]> SETTINGS =
                SCHEMA.optional("settings", Type.orNil(Type.bytes(0, 8)), null);

        /** Random, new with every connection. */
        public final byte[] nonce;
        /** The version of the agent's software, for people. */
        public final String version;
        /**
         * What the device can train with: the program runtimes {@code onnxruntime} and {@code executorch}, or its own
         * code, {@code torch} and {@code function}, which needs no program (B14).
         */
        public final List<String> backends;
        /**
         * Compressions that the device reads: {@code zstd}; {@code zlib} and {@code none} are implied and may be
         * listed.
         */
        public final List<String> compressions;
        /** The words of the device's extensions (extensions.md). */
        public final List<String> codecs;
        /** The number of the device's training examples (5.28). */
        public final long numTrain;
        /** The number of the device's test examples. */
        public final long numTest;
        /** The machine's memory in units of 10^6 bytes; 0: unknown, so no work is withheld for lack of it. */
        public final long memoryMb;
        /** The versions of this protocol that the device speaks. */
        public final List<Long> versions;
        /**
         * For people: why the device is not starting its orders, or one of them, such as a low battery. Until that
         * changes, the coordinator does not count on the device (C16).
         */
        public final String waits;
        /** The Maximum Packet Size in bytes of the device's broker, if below 266304; 0: none is announced. */
        public final long maxPacket;
        /** In a doctor's HELLO only (3.4): the answering WELCOME carries the same padding. */
        public final byte[] padding;
        /**
         * The runs for which the device keeps state (5.12), so that no order relies on state that is missing; nil: not
         * stated.
         */
        public final List<String> holds;
        /** The device leaves the fleet for good (5.4). */
        public final boolean leaves;
        /**
         * The first 16 bytes of the SHA-256 of the device's certificate (DER) for the broker; empty: the device accepts
         * none (E19).
         */
        public final byte[] certificate;
        /**
         * The name of the settings that the device has accepted (settings.md), empty for none; nil: the device accepts
         * none.
         */
        public final byte[] settings;

        private Hello(Object[] given) {
            super(SCHEMA, given);
            nonce = NONCE.in(given);
            version = VERSION.in(given);
            backends = BACKENDS.in(given);
            compressions = COMPRESSIONS.in(given);
            codecs = CODECS.in(given);
            numTrain = NUM_TRAIN.in(given);
            numTest = NUM_TEST.in(given);
            memoryMb = MEMORY_MB.in(given);
            versions = VERSIONS.in(given);
            waits = WAITS.in(given);
            maxPacket = MAX_PACKET.in(given);
            padding = PADDING.in(given);
            holds = HOLDS.in(given);
            leaves = LEAVES.in(given);
            certificate = CERTIFICATE.in(given);
            settings = SETTINGS.in(given);
        }
    }

    /** The coordinator has received the hello with this nonce. */
    public static final class Welcome extends Struct<Welcome> {
        public static final Schema<Welcome> SCHEMA = new Schema<Welcome>(true) {
            @Override
            protected Welcome make(Object[] given) {
                return new Welcome(given);
            }
        };
        public static final Field<Welcome, byte[]> NONCE = SCHEMA.required("nonce", Type.NONCE);
        public static final Field<Welcome, String> VERSION = SCHEMA.required("version", Type.text(0, 64));
        public static final Field<Welcome, List<Long>> VERSIONS =
                SCHEMA.optional("versions", Type.list(Type.integer(1, 255), 1, 16), Collections.singletonList(1L));
        public static final Field<Welcome, Long> DEVICES = SCHEMA.optional("devices", Type.COUNT, 0L);
        public static final Field<Welcome, Long> MAX_PACKET = SCHEMA.optional("max_packet", Type.COUNT, 0L);
        public static final Field<Welcome, byte[]> PADDING =
                SCHEMA.optional("padding", Type.bytes(0, 262144), new byte[0]);
        public static final Field<Welcome, byte[]> SETTINGS =
                SCHEMA.optional("settings", Type.bytes(0, 2048), new byte[0]);

        /** The nonce of the hello, or zeros. */
        public final byte[] nonce;
        /** The version of the coordinator's software, for people. */
        public final String version;
        /** The versions of this protocol that the coordinator speaks. */
        public final List<Long> versions;
        /** The number of devices in the fleet, used to spread out their connections (1.9); 0: not stated. */
        public final long devices;
        /**
         * The largest packet that the coordinator's broker lets through, in bytes, if below 266304; 0: there is no such
         * limit.
         */
        public final long maxPacket;
        /** The padding of a doctor's HELLO. */
        public final byte[] padding;
        /** The values that tighten the device's own settings (settings.md); empty: none. */
        public final byte[] settings;

        private Welcome(Object[] given) {
            super(SCHEMA, given);
            nonce = NONCE.in(given);
            version = VERSION.in(given);
            versions = VERSIONS.in(given);
            devices = DEVICES.in(given);
            maxPacket = MAX_PACKET.in(given);
            padding = PADDING.in(given);
            settings = SETTINGS.in(given);
        }
    }

    /** One device's work in one round. */
    public static final class Order extends Struct<Order> {
        public static final Schema<Order> SCHEMA = new Schema<Order>(true) {
            @Override
            protected Order make(Object[] given) {
                return new Order(given);
            }
        };
        public static final Field<Order, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Order, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Order, String> TASK = SCHEMA.required("task", Type.oneOf("evaluate", "train"));
        public static final Field<Order, Manifest> BUNDLE = SCHEMA.required("bundle", Manifest.SCHEMA);
        public static final Field<Order, Manifest> MODEL = SCHEMA.required("model", Manifest.SCHEMA);
        public static final Field<Order, byte[]> MODEL_HASH = SCHEMA.required("model_hash", Type.HASH);
        public static final Field<Order, List<Step>> STEPS =
                SCHEMA.optional("steps", Type.list(Step.SCHEMA, 0, 32), Collections.emptyList());
        public static final Field<Order, byte[]> PATCH = SCHEMA.optional("patch", Type.bytes(0, 32768), new byte[0]);
        public static final Field<Order, Manifest> PATCH_BLOB =
                SCHEMA.optional("patch_blob", Type.orNil(Manifest.SCHEMA), null);
        public static final Field<Order, byte[]> PATCH_HASH =
                SCHEMA.optional("patch_hash", Type.bytes(0, 32), new byte[0]);
        public static final Field<Order, Manifest> PATCH_CONTEXT =
                SCHEMA.optional("patch_context", Type.orNil(Manifest.SCHEMA), null);
        public static final Field<Order, Manifest> CORRECTION =
                SCHEMA.optional("correction", Type.orNil(Manifest.SCHEMA), null);
        public static final Field<Order, Manifest> FROZEN =
                SCHEMA.optional("frozen", Type.orNil(Manifest.SCHEMA), null);
        public static final Field<Order, List<Place>> PLACES =
                SCHEMA.optional("places", Type.list(Place.SCHEMA, 0, 8), Collections.emptyList());
        public static final Field<Order, Work> WORK = SCHEMA.optional("work", Work.SCHEMA, Work.SCHEMA.empty());
        public static final Field<Order, Codec> CODEC = SCHEMA.optional("codec", Codec.SCHEMA, Codec.SCHEMA.empty());
        public static final Field<Order, byte[]> CONTEXT = SCHEMA.optional("context", Type.bytes(0, 32), new byte[0]);
        public static final Field<Order, Long> SEED = SCHEMA.optional("seed", Type.integer(0, Long.MAX_VALUE), 0L);
        public static final Field<Order, byte[]> POLICY = SCHEMA.optional("policy", Type.bytes(0, 4096), new byte[0]);
        public static final Field<Order, byte[]> ORIGIN = SCHEMA.optional("origin", Type.bytes(0, 32), new byte[0]);

        /** The round's run. */
        public final String run;
        /** The number of the round. */
        public final long round;
        /** {@code evaluate}: train as ordered and report, but neither keep nor send the result. */
        public final String task;
        /** The packed bundle (bundle.md). */
        public final Manifest bundle;
        /**
         * The whole global model, or this device's replacement for it: a coded vector, sent with k = n (the device
         * checks its hash, not k).
         */
        public final Manifest model;
        /** The SHA-256 of the decoded model, n float32 little endian. */
        public final byte[] modelHash;
        /** Deltas that lead to the model, oldest first; the last one produces it. */
        public final List<Step> steps;
        /** A coded vector of absolute values that overwrite elements of the model; empty: none. */
        public final byte[] patch;
        /** The patch, if it is too large to be sent inline. */
        public final Manifest patchBlob;
        /** The SHA-256 of the coded patch; empty if there is none. */
        public final byte[] patchHash;
        /** Extension {@code select}: the mask that the patch's mask is coded against. */
        public final Manifest patchContext;
        /**
         * Extension {@code correction}: a coded vector that the device adds to every gradient of the model that it
         * sends.
         */
        public final Manifest correction;
        /**
         * Extension {@code frozen} (X15): the manifest of the bundle's frozen blob, if its chunks differ from those in
         * the bundle.
         */
        public final Manifest frozen;
        /**
         * Extension {@code places} (X19): HTTP servers that also have some of these blobs; a device may ignore them.
         */
        public final List<Place> places;
        /** What the device does with the start vector. */
        public final Work work;
        /** How the device encodes its update. */
        public final Codec codec;
        /**
         * Extension {@code select}: the SHA-256 of the mask that the coordinator holds, a bitmap of n bits; empty:
         * none.
         */
        public final byte[] context;
        /** The seed of the device's shuffles. */
        public final long seed;
        /** The run's signed policy (policy.md); empty: none. */
        public final byte[] policy;
        /**
         * The SHA-256 of the run's first bundle, of which this one is another version (5.30); empty: it is the first.
         */
        public final byte[] origin;

        private Order(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            task = TASK.in(given);
            bundle = BUNDLE.in(given);
            model = MODEL.in(given);
            modelHash = MODEL_HASH.in(given);
            steps = STEPS.in(given);
            patch = PATCH.in(given);
            patchBlob = PATCH_BLOB.in(given);
            patchHash = PATCH_HASH.in(given);
            patchContext = PATCH_CONTEXT.in(given);
            correction = CORRECTION.in(given);
            frozen = FROZEN.in(given);
            places = PLACES.in(given);
            work = WORK.in(given);
            codec = CODEC.in(given);
            context = CONTEXT.in(given);
            seed = SEED.in(given);
            policy = POLICY.in(given);
            origin = ORIGIN.in(given);
        }
    }

    /** The order of this run and round is void. */
    public static final class Cancel extends Struct<Cancel> {
        public static final Schema<Cancel> SCHEMA = new Schema<Cancel>(false) {
            @Override
            protected Cancel make(Object[] given) {
                return new Cancel(given);
            }
        };
        public static final Field<Cancel, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Cancel, Long> ROUND = SCHEMA.required("round", Type.COUNT);
        public static final Field<Cancel, String> REASON = SCHEMA.required("reason", Type.text(0, 1000));

        /** The order's run. */
        public final String run;
        /** The round whose order is void; 0: all orders of the run. */
        public final long round;
        /** The reason, for people. */
        public final String reason;

        private Cancel(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            reason = REASON.in(given);
        }
    }

    /** Ends the session of the hello with this nonce. Sent by the device or, as its will, by the broker. */
    public static final class Goodbye extends Struct<Goodbye> {
        public static final Schema<Goodbye> SCHEMA = new Schema<Goodbye>(false) {
            @Override
            protected Goodbye make(Object[] given) {
                return new Goodbye(given);
            }
        };
        public static final Field<Goodbye, byte[]> NONCE = SCHEMA.required("nonce", Type.NONCE);

        /** The nonce of the session. */
        public final byte[] nonce;

        private Goodbye(Object[] given) {
            super(SCHEMA, given);
            nonce = NONCE.in(given);
        }
    }

    /** A device has this blob for this round. */
    public static final class Offer extends Struct<Offer> {
        public static final Schema<Offer> SCHEMA = new Schema<Offer>(true) {
            @Override
            protected Offer make(Object[] given) {
                return new Offer(given);
            }
        };
        public static final Field<Offer, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Offer, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Offer, Manifest> MANIFEST = SCHEMA.required("manifest", Manifest.SCHEMA);
        public static final Field<Offer, Long> NUMBER = SCHEMA.required("number", Type.COUNT);
        public static final Field<Offer, byte[]> DATA = SCHEMA.optional("data", Type.bytes(0, 32768), new byte[0]);

        /** The run of the order that the update answers. */
        public final String run;
        /** The round of that order. */
        public final long round;
        /** The manifest of the update blob. */
        public final Manifest manifest;
        /** Counts the offers of one transfer; the answering HAVE repeats it. */
        public final long number;
        /** The whole blob if it is small; otherwise empty. */
        public final byte[] data;

        private Offer(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            manifest = MANIFEST.in(given);
            number = NUMBER.in(given);
            data = DATA.in(given);
        }
    }

    /** Says which chunks the receiver has, and how many it wants in flight at once. */
    public static final class Have extends Struct<Have> {
        public static final Schema<Have> SCHEMA = new Schema<Have>(false) {
            @Override
            protected Have make(Object[] given) {
                return new Have(given);
            }
        };
        public static final Field<Have, Long> NUMBER = SCHEMA.required("number", Type.COUNT);
        public static final Field<Have, byte[]> BITMAP = SCHEMA.required("bitmap", Type.bytes(0, 512));
        public static final Field<Have, Long> CREDIT = SCHEMA.required("credit", Type.integer(1, 64));

        /** The number of the offer that this HAVE answers; 0: none. */
        public final long number;
        /** The chunks that the receiver holds. */
        public final byte[] bitmap;
        /** How many chunks the receiver wants in flight at once. */
        public final long credit;

        private Have(Object[] given) {
            super(SCHEMA, given);
            number = NUMBER.in(given);
            bitmap = BITMAP.in(given);
            credit = CREDIT.in(given);
        }
    }

    /** The receipt: the blob is stored durably. */
    public static final class Committed extends Struct<Committed> {
        public static final Schema<Committed> SCHEMA = new Schema<Committed>(true) {
            @Override
            protected Committed make(Object[] given) {
                return new Committed(given);
            }
        };
        public static final Field<Committed, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Committed, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Committed, byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
        public static final Field<Committed, Boolean> LATE = SCHEMA.optional("late", Type.BOOL, false);

        /** The offer's run. */
        public final String run;
        /** The offer's round. */
        public final long round;
        /** The SHA-256 of the update blob. */
        public final byte[] sha256;
        /** Whether the round had already closed. */
        public final boolean late;

        private Committed(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            sha256 = SHA256.in(given);
            late = LATE.in(given);
        }
    }

    /** The blob will never be accepted, for this reason. */
    public static final class Reject extends Struct<Reject> {
        public static final Schema<Reject> SCHEMA = new Schema<Reject>(false) {
            @Override
            protected Reject make(Object[] given) {
                return new Reject(given);
            }
        };
        public static final Field<Reject, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Reject, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Reject, byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
        public static final Field<Reject, String> REASON = SCHEMA.required("reason", Type.text(0, 64));
        public static final Field<Reject, String> DETAIL = SCHEMA.optional("detail", Type.text(0, 1000), "");

        /** The offer's run. */
        public final String run;
        /** The offer's round. */
        public final long round;
        /** The SHA-256 of the update blob. */
        public final byte[] sha256;
        /** A code from section 10. */
        public final String reason;
        /** What is wrong, where, and what was expected. */
        public final String detail;

        private Reject(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            sha256 = SHA256.in(given);
            reason = REASON.in(given);
            detail = DETAIL.in(given);
        }
    }

    /** Not now: offer again after this time. */
    public static final class Busy extends Struct<Busy> {
        public static final Schema<Busy> SCHEMA = new Schema<Busy>(false) {
            @Override
            protected Busy make(Object[] given) {
                return new Busy(given);
            }
        };
        public static final Field<Busy, Long> RETRY_MS = SCHEMA.required("retry_ms", Type.COUNT);
        public static final Field<Busy, String> REASON = SCHEMA.optional("reason", Type.text(0, 64), "");

        /** Milliseconds until the next offer. */
        public final long retryMs;
        /** The reason, for people. */
        public final String reason;

        private Busy(Object[] given) {
            super(SCHEMA, given);
            retryMs = RETRY_MS.in(given);
            reason = REASON.in(given);
        }
    }

    /** The device lacks these chunks of the blob whose transfer id is in the header. */
    public static final class Get extends Struct<Get> {
        public static final Schema<Get> SCHEMA = new Schema<Get>(false) {
            @Override
            protected Get make(Object[] given) {
                return new Get(given);
            }
        };
        public static final Field<Get, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Get, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Get, byte[]> MISSING = SCHEMA.required("missing", Type.bytes(0, 512));

        /** The run of an order that needs the blob. */
        public final String run;
        /** The round of that order. */
        public final long round;
        /** A bitmap as in 5.20: the chunks to send. */
        public final byte[] missing;

        private Get(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            missing = MISSING.in(given);
        }
    }

    /** The device cannot carry out this order, and waiting would not help. */
    public static final class Decline extends Struct<Decline> {
        public static final Schema<Decline> SCHEMA = new Schema<Decline>(false) {
            @Override
            protected Decline make(Object[] given) {
                return new Decline(given);
            }
        };
        public static final Field<Decline, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Decline, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Decline, String> REASON = SCHEMA.required("reason", Type.text(0, 64));
        public static final Field<Decline, String> DETAIL = SCHEMA.optional("detail", Type.text(0, 1000), "");

        /** The order's run. */
        public final String run;
        /** The order's round. */
        public final long round;
        /** A code from section 10. */
        public final String reason;
        /** What is wrong, where, and what was expected. */
        public final String detail;

        private Decline(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            reason = REASON.in(given);
            detail = DETAIL.in(given);
        }
    }

    /** The reason why the coordinator cannot work with the device. */
    public static final class Refusal extends Struct<Refusal> {
        public static final Schema<Refusal> SCHEMA = new Schema<Refusal>(false) {
            @Override
            protected Refusal make(Object[] given) {
                return new Refusal(given);
            }
        };
        public static final Field<Refusal, String> REASON = SCHEMA.required("reason", Type.text(0, 64));
        public static final Field<Refusal, String> DETAIL = SCHEMA.optional("detail", Type.text(0, 1000), "");

        /** A code from section 10. */
        public final String reason;
        /** What is wrong, where, and what was expected. */
        public final String detail;

        private Refusal(Object[] given) {
            super(SCHEMA, given);
            reason = REASON.in(given);
            detail = DETAIL.in(given);
        }
    }

    /** A device asks to join, on its token's topic (E9), or for a new secret, on its own topic (E14). */
    public static final class Join extends Struct<Join> {
        public static final Schema<Join> SCHEMA = new Schema<Join>(true) {
            @Override
            protected Join make(Object[] given) {
                return new Join(given);
            }
        };
        public static final Field<Join, byte[]> POINT = SCHEMA.required("point", Type.bytes(65, 65));
        public static final Field<Join, String> DEVICE = SCHEMA.required("device", Type.ID);
        public static final Field<Join, byte[]> PROOF = SCHEMA.required("proof", Type.NONCE);
        public static final Field<Join, String> VERSION = SCHEMA.optional("version", Type.text(0, 64), "");

        /** The device's public key, a point on P-256. */
        public final byte[] point;
        /** The id that the device requests. */
        public final String device;
        /** Proves that the sender has the private key (E10). */
        public final byte[] proof;
        /** The version of the device's software, for people. */
        public final String version;

        private Join(Object[] given) {
            super(SCHEMA, given);
            point = POINT.in(given);
            device = DEVICE.in(given);
            proof = PROOF.in(given);
            version = VERSION.in(given);
        }
    }

    /** The coordinator's answer to a JOIN, or a later decision on it. */
    public static final class Joined extends Struct<Joined> {
        public static final Schema<Joined> SCHEMA = new Schema<Joined>(true) {
            @Override
            protected Joined make(Object[] given) {
                return new Joined(given);
            }
        };
        public static final Field<Joined, byte[]> OF = SCHEMA.required("of", Type.NONCE);
        public static final Field<Joined, String> STATE =
                SCHEMA.required("state", Type.oneOf("accepted", "pending", "refused"));
        public static final Field<Joined, String> DEVICE = SCHEMA.optional("device", Type.text(0, 48), "");
        public static final Field<Joined, byte[]> PROOF = SCHEMA.optional("proof", Type.bytes(0, 16), new byte[0]);
        public static final Field<Joined, List<String>> TAGS =
                SCHEMA.optional("tags", Type.list(Type.text(0, 100), 0, 32), Collections.emptyList());
        public static final Field<Joined, String> DETAIL = SCHEMA.optional("detail", Type.text(0, 1000), "");
        public static final Field<Joined, byte[]> CERTIFICATE =
                SCHEMA.optional("certificate", Type.bytes(0, 2048), new byte[0]);

        /** The first 16 bytes of the SHA-256 of the public key in the JOIN. */
        public final byte[] of;
        /** {@code pending}: a person has yet to accept the device; {@code accepted}; {@code refused}. */
        public final String state;
        /** The device's id. */
        public final String device;
        /** In {@code accepted}: proves that the sender is the coordinator (E10). */
        public final byte[] proof;
        /** In {@code accepted}: the device's tags, {@code key=value} each, for people. */
        public final List<String> tags;
        /** In {@code refused}: what is wrong, and what was expected. */
        public final String detail;
        /** In {@code accepted}: the device's certificate for the broker, DER, where it needs one (E18, E19). */
        public final byte[] certificate;

        private Joined(Object[] given) {
            super(SCHEMA, given);
            of = OF.in(given);
            state = STATE.in(given);
            device = DEVICE.in(given);
            proof = PROOF.in(given);
            tags = TAGS.in(given);
            detail = DETAIL.in(given);
            certificate = CERTIFICATE.in(given);
        }
    }

    /** Asks the device to change its secret (E14); it answers with a JOIN. */
    public static final class Renew extends Struct<Renew> {
        public static final Schema<Renew> SCHEMA = new Schema<Renew>(false) {
            @Override
            protected Renew make(Object[] given) {
                return new Renew(given);
            }
        };
        public static final Field<Renew, byte[]> POINT = SCHEMA.required("point", Type.bytes(65, 65));

        /** The coordinator's public key, a point on P-256. */
        public final byte[] point;

        private Renew(Object[] given) {
            super(SCHEMA, given);
            point = POINT.in(given);
        }
    }

    /** The run and round of an order, the only parts that can be read if the order has an unknown value. */
    public static final class OrderName extends Struct<OrderName> {
        public static final Schema<OrderName> SCHEMA = new Schema<OrderName>(false) {
            @Override
            protected OrderName make(Object[] given) {
                return new OrderName(given);
            }
        };
        public static final Field<OrderName, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<OrderName, Long> ROUND = SCHEMA.required("round", Type.ROUND);

        /** The order's run. */
        public final String run;
        /** The order's round. */
        public final long round;

        private OrderName(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
        }
    }

    /** The limits on what the orders of one run may ask for. */
    public static final class Policy extends Struct<Policy> {
        public static final Schema<Policy> SCHEMA = new Schema<Policy>(true) {
            @Override
            protected Policy make(Object[] given) {
                return new Policy(given);
            }
        };
        public static final Field<Policy, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Policy, Long> VERSION = SCHEMA.required("version", Type.integer(1, 1099511627776L));
        public static final Field<Policy, List<byte[]>> BUNDLES =
                SCHEMA.required("bundles", Type.list(Type.HASH, 1, 64));
        public static final Field<Policy, Long> LAST_ROUND = SCHEMA.required("last_round", Type.ROUND);
        public static final Field<Policy, List<String>> TASKS =
                SCHEMA.required("tasks", Type.list(Type.oneOf("evaluate", "train"), 1, 2));
        public static final Field<Policy, Long> LOCAL_EPOCHS = SCHEMA.required("local_epochs", Type.integer(1, 10000));
        public static final Field<Policy, Double> LEARNING_RATE =
                SCHEMA.required("learning_rate", Type.number(0, false, 1000000000.0));
        public static final Field<Policy, Double> MOMENTUM =
                SCHEMA.optional("momentum", Type.number(0, false, 1000000000.0), 0.0);
        public static final Field<Policy, Double> PROX =
                SCHEMA.optional("prox", Type.number(0, false, 1000000000.0), 0.0);
        public static final Field<Policy, List<String>> WORDS =
                SCHEMA.optional("words", Type.list(Type.text(0, 64), 0, 32), Collections.emptyList());
        public static final Field<Policy, Long> EXPIRES = SCHEMA.optional("expires", Type.COUNT, 0L);
        public static final Field<Policy, List<byte[]>> CHAIN =
                SCHEMA.optional("chain", Type.list(Type.bytes(104, 104), 0, 16), Collections.emptyList());

        /** The run whose orders the policy allows. */
        public final String run;
        /** Increases with every policy of the run: a device refuses a version below the last one accepted. */
        public final long version;
        /** The SHA-256 of the manifest (B1) of each bundle that an order may name. */
        public final List<byte[]> bundles;
        /** The last round for which the policy allows orders. */
        public final long lastRound;
        /** The tasks that the policy allows. */
        public final List<String> tasks;
        /** The maximum number of passes over a device's examples, in an order's training phases together. */
        public final long localEpochs;
        /** The largest learning rate that a step of any training phase may reach. */
        public final double learningRate;
        /** The largest {@code momentum} of a training phase. */
        public final double momentum;
        /** The largest {@code prox} of a training phase. */
        public final double prox;
        /** The words of the extensions that an order may use. */
        public final List<String> words;
        /** The Unix time at which the policy expires; 0: never. */
        public final long expires;
        /** The statements that lead from earlier keys to the one that signed the policy (P8), oldest first. */
        public final List<byte[]> chain;

        private Policy(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            version = VERSION.in(given);
            bundles = BUNDLES.in(given);
            lastRound = LAST_ROUND.in(given);
            tasks = TASKS.in(given);
            localEpochs = LOCAL_EPOCHS.in(given);
            learningRate = LEARNING_RATE.in(given);
            momentum = MOMENTUM.in(given);
            prox = PROX.in(given);
            words = WORDS.in(given);
            expires = EXPIRES.in(given);
            chain = CHAIN.in(given);
        }
    }

    /** The mean loss and the mean of the bundle's metric in an evaluation of {@code num_examples} examples. */
    public static final class Metrics extends Struct<Metrics> {
        public static final Schema<Metrics> SCHEMA = new Schema<Metrics>(false) {
            @Override
            protected Metrics make(Object[] given) {
                return new Metrics(given);
            }
        };
        public static final Field<Metrics, Double> LOSS = SCHEMA.required("loss", Type.FINITE);
        public static final Field<Metrics, Double> METRIC = SCHEMA.required("metric", Type.FINITE);
        public static final Field<Metrics, Long> NUM_EXAMPLES = SCHEMA.required("num_examples", Type.COUNT);

        /** The mean loss over the examples. */
        public final double loss;
        /** The mean of the bundle's {@code metric} over the examples; from 0 to 1 if the metric is a share. */
        public final double metric;
        /** The number of test examples. */
        public final long numExamples;

        private Metrics(Object[] given) {
            super(SCHEMA, given);
            loss = LOSS.in(given);
            metric = METRIC.in(given);
            numExamples = NUM_EXAMPLES.in(given);
        }
    }

    /** A device's report on one order. {@code model_hash} and {@code patch_hash} identify the start vector. */
    public static final class Report extends Struct<Report> {
        public static final Schema<Report> SCHEMA = new Schema<Report>(true) {
            @Override
            protected Report make(Object[] given) {
                return new Report(given);
            }
        };
        public static final Field<Report, String> RUN = SCHEMA.required("run", Type.ID);
        public static final Field<Report, Long> ROUND = SCHEMA.required("round", Type.ROUND);
        public static final Field<Report, String> TASK = SCHEMA.required("task", Type.oneOf("evaluate", "train"));
        public static final Field<Report, byte[]> LAYOUT_HASH = SCHEMA.required("layout_hash", Type.HASH);
        public static final Field<Report, byte[]> MODEL_HASH = SCHEMA.required("model_hash", Type.HASH);
        public static final Field<Report, byte[]> PATCH_HASH =
                SCHEMA.optional("patch_hash", Type.bytes(0, 32), new byte[0]);
        public static final Field<Report, Long> NUM_EXAMPLES = SCHEMA.required("num_examples", Type.COUNT);
        public static final Field<Report, Metrics> BEFORE = SCHEMA.required("before", Metrics.SCHEMA);
        public static final Field<Report, Metrics> AFTER = SCHEMA.required("after", Metrics.SCHEMA);
        public static final Field<Report, Double> TRAIN_LOSS = SCHEMA.required("train_loss", Type.FINITE);
        public static final Field<Report, Long> STEPS = SCHEMA.required("steps", Type.COUNT);
        public static final Field<Report, Double> SECONDS =
                SCHEMA.required("seconds", Type.number(0, false, Double.MAX_VALUE));
        public static final Field<Report, Double> MIX =
                SCHEMA.optional("mix", Type.orNil(Type.number(0, false, 1.0)), null);
        public static final Field<Report, Metrics> SPARSE = SCHEMA.optional("sparse", Type.orNil(Metrics.SCHEMA), null);
        public static final Field<Report, Boolean> PATCHED = SCHEMA.optional("patched", Type.orNil(Type.BOOL), null);
        public static final Field<Report, Double> STEP_S =
                SCHEMA.optional("step_s", Type.orNil(Type.number(0, false, Double.MAX_VALUE)), null);
        public static final Field<Report, Double> TEMPERATURE_C =
                SCHEMA.optional("temperature_c", Type.orNil(Type.FINITE), null);
        public static final Field<Report, Double> ENERGY_J =
                SCHEMA.optional("energy_j", Type.orNil(Type.number(0, false, Double.MAX_VALUE)), null);
        public static final Field<Report, Long> HTTP_BYTES = SCHEMA.optional("http_bytes", Type.COUNT, 0L);
        public static final Field<Report, Map<String, Long>> ARRAYS =
                SCHEMA.optional("arrays", Type.map(Type.integer(1, 8192), 16), Collections.emptyMap());

        /** The run of the order. */
        public final String run;
        /** The round of the order. */
        public final long round;
        /** The task of the order. */
        public final String task;
        /** The hash of the bundle's layout (B8). */
        public final byte[] layoutHash;
        /** The model hash of the order. */
        public final byte[] modelHash;
        /** The patch hash of the order. */
        public final byte[] patchHash;
        /** The number of training examples (5.28). */
        public final long numExamples;
        /** The evaluation of the start vector. */
        public final Metrics before;
        /** The evaluation of the trained model. */
        public final Metrics after;
        /** The mean loss of the model that is sent, over the last epoch's batches (T5). */
        public final double trainLoss;
        /** The number of steps of all training phases (T5). */
        public final long steps;
        /** Seconds from the start of the work to the report, for people. */
        public final double seconds;
        /** Extension {@code own_model} (X3): the final share of the personal component in the mixture. */
        public final Double mix;
        /**
         * Extension {@code select} (X5): the evaluation after setting to 0 each element that {@code select} could have
         * chosen but did not.
         */
        public final Metrics sparse;
        /** Extension {@code choice} (X9): whether the device chose to apply its patch. */
        public final Boolean patched;
        /** The mean duration of a training step in seconds, without evaluation. */
        public final Double stepS;
        /** The highest temperature during the work, in °C. */
        public final Double temperatureC;
        /** An estimate of the energy used by the work, in joules. */
        public final Double energyJ;
        /**
         * Extension {@code places}: bytes of blobs received over HTTP since the last report, as far as the device
         * knows.
         */
        public final long httpBytes;
        /**
         * Extension {@code arrays}: the arrays between report and payload, in order, each with its number of elements.
         */
        public final Map<String, Long> arrays;

        private Report(Object[] given) {
            super(SCHEMA, given);
            run = RUN.in(given);
            round = ROUND.in(given);
            task = TASK.in(given);
            layoutHash = LAYOUT_HASH.in(given);
            modelHash = MODEL_HASH.in(given);
            patchHash = PATCH_HASH.in(given);
            numExamples = NUM_EXAMPLES.in(given);
            before = BEFORE.in(given);
            after = AFTER.in(given);
            trainLoss = TRAIN_LOSS.in(given);
            steps = STEPS.in(given);
            seconds = SECONDS.in(given);
            mix = MIX.in(given);
            sparse = SPARSE.in(given);
            patched = PATCHED.in(given);
            stepS = STEP_S.in(given);
            temperatureC = TEMPERATURE_C.in(given);
            energyJ = ENERGY_J.in(given);
            httpBytes = HTTP_BYTES.in(given);
            arrays = ARRAYS.in(given);
        }
    }

}
