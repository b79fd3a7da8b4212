package org.sedge.edge.host;

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads facts about the machine that Linux, and therefore Android, reports. */
public final class Machine {
    private static final Pattern TOTAL = Pattern.compile("MemTotal: +([0-9]+) kB");

    private Machine() {}

    /**
     * Returns the machine's memory in MB, or 0 if it is unknown.
     *
     * <p>The coordinator compares this number with the memory that a runtime needs for a step, outside the Java heap.
     * The heap holds about ten vectors of the model's size. A job that needs a larger heap is declined as OutOfMemory.
     */
    public static long memoryMb() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(
                new FileInputStream(new File("/proc/meminfo")), StandardCharsets.US_ASCII))) {
            String first = lines.readLine();
            Matcher found = TOTAL.matcher(first == null ? "" : first);
            return found.matches() ? Long.parseLong(found.group(1)) * 1024 / 1_000_000 : 0;
        } catch (IOException error) {
            return 0;
        }
    }
}
