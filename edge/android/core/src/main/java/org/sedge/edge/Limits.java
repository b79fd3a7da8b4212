package org.sedge.edge;

/** The most that a device does, whatever a coordinator asks of it; the defaults are those of edge.toml. */
public final class Limits {
    public static final Limits DEFAULT = new Limits(3600, 10_000, 16, 0.5);

    /** Orders to accept per hour; never more than 32 at once. */
    public final int ordersPerHour;
    /** Megabytes to download per day. */
    public final double megabytesPerDay;
    /** Hours of training per day. */
    public final double trainingHoursPerDay;
    /** Share of the free disk space, its own files included, that the state folder may use. */
    public final double diskShare;

    /** Throws {@code IllegalArgumentException} for a value out of bounds. */
    public Limits(int ordersPerHour, double megabytesPerDay, double trainingHoursPerDay, double diskShare) {
        boolean hours = trainingHoursPerDay > 0 && trainingHoursPerDay <= 24;
        if (ordersPerHour < 1 || !(megabytesPerDay > 0) || !hours || !(diskShare > 0 && diskShare <= 1)) {
            throw new IllegalArgumentException("limits: expected at least one order an hour, megabytes above 0, "
                    + "hours above 0 to 24 and a share above 0 to 1");
        }
        this.ordersPerHour = ordersPerHour;
        this.megabytesPerDay = megabytesPerDay;
        this.trainingHoursPerDay = trainingHoursPerDay;
        this.diskShare = diskShare;
    }
}
