package android.os;

import java.util.ArrayList;
import java.util.List;

/** Replaces Android's class for tests on a JVM. Values are read in the order in which they were written. */
public final class Parcel {
    List<Object> values = new ArrayList<Object>();
    private int at;

    private Parcel() {}

    public static Parcel obtain() {
        return new Parcel();
    }

    public void recycle() {}

    public void writeInt(int value) {
        values.add(value);
    }

    public void writeString(String value) {
        values.add(value);
    }

    public int readInt() {
        return (Integer) values.get(at++);
    }

    public String readString() {
        return (String) values.get(at++);
    }
}
