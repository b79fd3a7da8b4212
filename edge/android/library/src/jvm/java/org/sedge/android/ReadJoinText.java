package org.sedge.android;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;
import org.sedge.edge.wire.Hex;

/** Prints the contents of each join text on one line, or why it is refused. */
public final class ReadJoinText {
    private ReadJoinText() {}

    public static void main(String[] words) {
        for (String word : words) {
            try {
                AgentConfig config = AgentConfig.fromJoinText(word);
                String ca = config.caPem == null ? "no authority" : config.caPem.replace("\n", "|");
                System.out.println(config.device + " " + config.fleet + " " + config.url + " "
                        + Hex.encode(config.secret()) + " " + ca);
            } catch (SedgeException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
