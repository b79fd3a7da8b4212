package org.sedge.android;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Npz;

import java.io.File;
import java.util.Arrays;

/** Prints the rows of an .npz file, or why it has none. */
public final class ReadNpz {
    private ReadNpz() {}

    private static String said(Rows rows) {
        return rows == null ? "none" : Rows.tuple(rows.shape()) + " "
                + (rows.isFloat() ? Arrays.toString(rows.floats()) : Arrays.toString(rows.longs()));
    }

    public static void main(String[] words) {
        for (String word : words) {
            try {
                Examples examples = Npz.read(new File(word));
                System.out.println(said(examples.inputs) + "; " + said(examples.targets));
            } catch (SedgeException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
