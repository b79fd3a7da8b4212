package org.sedge.android;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Npz;

import java.io.File;
import java.util.Arrays;

/** Prints an .npz file's shape, inputs and labels, or why it holds none. */
public final class ReadNpz {
    private ReadNpz() {}

    public static void main(String[] words) {
        for (String word : words) {
            try {
                Examples examples = Npz.read(new File(word));
                System.out.println(Arrays.toString(examples.sampleShape) + " " + Arrays.toString(examples.inputs) + " "
                        + Arrays.toString(examples.labels));
            } catch (SedgeException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
