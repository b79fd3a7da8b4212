package org.sedge.edge;

import org.jspecify.annotations.Nullable;

/**
 * Base of every error that the agent raises on purpose, one short tree as in the Python agent:
 *
 * <pre>
 * ConfigError, DataError, StorageError, OutOfMemory, TrainingDiverged, TooManyRuns, TooManyStarts
 * RemoteError       the peer's bytes break a rule: dropped and counted, never a crash
 *   FrameError      header, length or MAC of a frame; a chunk that is not the blob's
 *     BodyError     a frame with a good MAC whose message breaks its schema
 *   CodecError      a coded vector, a bundle, or a model that is not what the order says
 *     BrokenSteps   steps that do not lead to the order's model
 * </pre>
 */
@SuppressWarnings("serial") // nobody serialises them
public abstract class SedgeException extends Exception {
    private final String reason;

    SedgeException(String reason, String message, Throwable cause) {
        super(message, cause);
        this.reason = reason;
    }

    /** The name of the error's class in a DECLINE (WIRE.md, section 10). */
    public final String reason() {
        return reason;
    }

    /** A configuration value that is missing or invalid. */
    public static final class ConfigError extends SedgeException {
        public ConfigError(String message) {
            super("ConfigError", message, null);
        }

        /** Worded like the Python agent's; a {@code found} text needs quotation marks, null: it is missing. */
        public ConfigError(String key, @Nullable String found, String expected) {
            this(key + ": " + (found == null ? "missing" : "found " + found) + ", expected " + expected);
        }
    }

    /** The examples cannot be trained on. */
    public static final class DataError extends SedgeException {
        public DataError(String message) {
            super("DataError", message, null);
        }
    }

    /** The model, its loss or its update is no longer finite. */
    public static final class TrainingDiverged extends SedgeException {
        public TrainingDiverged(String message) {
            super("TrainingDiverged", message, null);
        }
    }

    /** Every run that the device keeps is in use. */
    public static final class TooManyRuns extends SedgeException {
        public TooManyRuns(String message) {
            super("TooManyRuns", message, null);
        }
    }

    /** More orders have arrived than the device's limits allow. */
    public static final class TooManyOrders extends SedgeException {
        public TooManyOrders(String message) {
            super("TooManyOrders", message, null);
        }
    }

    /** Several starts of the agent began an order, and none survived it. */
    public static final class TooManyStarts extends SedgeException {
        public TooManyStarts(String message) {
            super("TooManyStarts", message, null);
        }
    }

    /** The disk refused, or holds bytes that are not what was written. */
    public static final class StorageError extends SedgeException {
        public StorageError(String message, Throwable cause) {
            super("StorageError", message, cause);
        }
    }

    /** A job needs more memory than the device has. */
    public static final class OutOfMemory extends SedgeException {
        public OutOfMemory(String message, Throwable cause) {
            super("OutOfMemory", message, cause);
        }
    }

    /** The peer's bytes break a rule of the protocol. */
    public abstract static class RemoteError extends SedgeException {
        RemoteError(String reason, String message, Throwable cause) {
            super(reason, message, cause);
        }
    }

    /** A frame's header, length, MAC or version is wrong, or a chunk is not its blob's. */
    public static class FrameError extends RemoteError {
        public FrameError(String message) {
            this("FrameError", message);
        }

        FrameError(String reason, String message) {
            super(reason, message, null);
        }
    }

    /** The message in a genuine frame breaks its schema. */
    public static final class BodyError extends FrameError {
        private final byte[] order;

        public BodyError(String message, byte[] order) {
            super("BodyError", message);
            this.order = order.clone();
        }

        /** The body of an ORDER, whose run and round may still be readable; empty for other kinds. */
        public byte[] order() {
            return order.clone();
        }
    }

    /** A coded vector, bundle or model that is malformed. */
    public static class CodecError extends RemoteError {
        public CodecError(String message) {
            this(message, null);
        }

        public CodecError(String message, Throwable cause) {
            super("CodecError", message, cause);
        }
    }

    /** An order without a valid signed policy, or one that asks for more than its policy allows. */
    public static final class PolicyError extends RemoteError {
        public PolicyError(String message) {
            super("PolicyError", message, null);
        }
    }

    /** An order's steps do not lead to its model; the whole model may still work. */
    public static final class BrokenSteps extends CodecError {
        public BrokenSteps(String message) {
            super(message);
        }
    }
}
