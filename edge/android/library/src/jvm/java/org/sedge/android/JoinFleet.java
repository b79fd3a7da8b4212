package org.sedge.android;

import android.content.Context;

import org.sedge.edge.Agent;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;

import java.io.IOException;

/**
 * Joins a fleet as a phone, with a token. Its arguments are {@code TOKEN NAME}. If the request is still
 * pending, asks once more. Prints the phone's id, or why it could not join. Finally the phone leaves.
 */
public final class JoinFleet {
    private JoinFleet() {}

    public static void main(String[] words) throws IOException, SedgeException {
        Context context = new Context();
        AgentConfig config = null;
        try {
            config = Membership.joinByToken(context, words[0], words[1], 3_000);
            System.out.println(config == null ? "pending" : config.device);
            config = config == null ? Membership.joinByToken(context, words[0], words[1], 60_000) : config;
        } catch (SedgeException error) {
            System.out.println(error.getMessage());
            return;
        }
        System.out.println(Membership.config(context).device + " " + Membership.leave(context));
    }
}
