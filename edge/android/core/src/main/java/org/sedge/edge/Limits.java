package org.sedge.edge;

/**
 * Upper limits on what a device does for a coordinator, whatever the coordinator orders. The defaults are the same as
 * in edge.toml.
 */
public final class Limits {
    public static final Limits DEFAULT = new Limits(3600, 10_000, 16, 0.5);

    /** The maximum number of orders to accept per hour. Never more than 32 are accepted in a burst. */
    public final int ordersPerHour;
    /** The maximum number of megabytes to download per day. */
    public final double megabytesPerDay;
    /** The maximum number of hours to train per day. */
    public final double trainingHoursPerDay;
    /** The share that the state folder may use of the disk's free space plus the folder's own files. */
    public final double diskShare;

    /** @throws IllegalArgumentException if a value is out of bounds */
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
