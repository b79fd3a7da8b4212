package org.sedge.edge.wire;

/** The kinds of frames (WIRE.md, section 4), in the order of their numbers, which begin at 1. */
public enum Kind {
    HELLO(Messages.Hello.SCHEMA, true),
    WELCOME(Messages.Welcome.SCHEMA, true),
    ORDER(Messages.Order.SCHEMA, false),
    CANCEL(Messages.Cancel.SCHEMA, false),
    GOODBYE(Messages.Goodbye.SCHEMA, true),
    OFFER(Messages.Offer.SCHEMA, false),
    HAVE(Messages.Have.SCHEMA, false),
    CHUNK(null, true),
    COMMITTED(Messages.Committed.SCHEMA, false),
    REJECT(Messages.Reject.SCHEMA, false),
    BUSY(Messages.Busy.SCHEMA, false),
    GET(Messages.Get.SCHEMA, false),
    DECLINE(Messages.Decline.SCHEMA, false),
    REFUSED(Messages.Refusal.SCHEMA, true),
    JOIN(Messages.Join.SCHEMA, true),
    JOINED(Messages.Joined.SCHEMA, true),
    RENEW(Messages.Renew.SCHEMA, false);

    /** The schema of the body; null for a chunk, which has none. */
    public final Schema<?> schema;
    /** Whether the kind keeps the format of protocol version 1 forever (3.4). */
    final boolean frozen;

    Kind(Schema<?> schema, boolean frozen) {
        this.schema = schema;
        this.frozen = frozen;
    }

    /** Returns the kind's number in a frame header. */
    public int number() {
        return ordinal() + 1;
    }

    /** Returns the kind with this number, or null if there is none. */
    public static Kind of(int number) {
        return number >= 1 && number <= values().length ? values()[number - 1] : null;
    }
}
