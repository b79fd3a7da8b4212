package org.sedge.edge;

import org.jspecify.annotations.Nullable;

/**
 * The base class of all errors that the agent throws on purpose. The hierarchy is the same as in the Python agent:
 *
 * <pre>
 * ConfigError, DataError, StorageError, OutOfMemory, TrainingDiverged, TooManyRuns, TooManyStarts
 * RemoteError       the peer's bytes break a rule; they are dropped and counted, and never cause a crash
 *   FrameError      a frame with a wrong header, length or MAC; a chunk that does not belong to its blob
 *     BodyError     a frame with a valid MAC whose message breaks its schema
 *   CodecError      a malformed coded vector or bundle, or a model that is not the one in the order
 *     BrokenSteps   steps that do not lead to the order's model
 * </pre>
 */
@SuppressWarnings("serial") // these exceptions are never serialized
public abstract class SedgeException extends Exception {
    private final String reason;

    SedgeException(String reason, String message, Throwable cause) {
        super(message, cause);
        this.reason = reason;
    }

    /** Returns the name of the error's class, as sent in a DECLINE (WIRE.md, section 10). */
    public final String reason() {
        return reason;
    }

    /** A configuration value is missing or invalid. */
    public static final class ConfigError extends SedgeException {
        public ConfigError(String message) {
            super("ConfigError", message, null);
        }

        /**
         * Words the message as the Python agent does. A {@code found} text must include its quotation marks; null means
         * that the value is missing.
         */
        public ConfigError(String key, @Nullable String found, String expected) {
            this(key + ": " + (found == null ? "missing" : "found " + found) + ", expected " + expected);
        }
    }

    /** The model cannot be trained on these examples. */
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

    /** There is no room for another run, because all runs that the device keeps are in use. */
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

    /** The agent began the same order in several starts, and survived none of them. */
    public static final class TooManyStarts extends SedgeException {
        public TooManyStarts(String message) {
            super("TooManyStarts", message, null);
        }
    }

    /** A disk operation failed, or the disk returned something other than what was written. */
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

    /** Bytes from the peer break a rule of the protocol. */
    public abstract static class RemoteError extends SedgeException {
        RemoteError(String reason, String message, Throwable cause) {
            super(reason, message, cause);
        }
    }

    /** A frame has a wrong header, length, MAC or version, or a chunk does not belong to its blob. */
    public static class FrameError extends RemoteError {
        public FrameError(String message) {
            this("FrameError", message);
        }

        FrameError(String reason, String message) {
            super(reason, message, null);
        }
    }

    /** The frame is genuine, but its message breaks its schema. */
    public static final class BodyError extends FrameError {
        private final byte[] order;

        public BodyError(String message, byte[] order) {
            super("BodyError", message);
            this.order = order.clone();
        }

        /**
         * Returns the body of an ORDER, whose run and round may still be readable. It is empty for other kinds of
         * frames.
         */
        public byte[] order() {
            return order.clone();
        }
    }

    /** A coded vector, bundle or model is malformed. */
    public static class CodecError extends RemoteError {
        public CodecError(String message) {
            this(message, null);
        }

        public CodecError(String message, Throwable cause) {
            super("CodecError", message, cause);
        }
    }

    /** An order has no valid signed policy, or asks for more than its policy allows. */
    public static final class PolicyError extends RemoteError {
        public PolicyError(String message) {
            super("PolicyError", message, null);
        }
    }

    /** An order's steps do not lead to its model. Fetching the whole model may still work. */
    public static final class BrokenSteps extends CodecError {
        public BrokenSteps(String message) {
            super(message);
        }
    }
}
