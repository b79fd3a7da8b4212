package org.sedge.android;

import android.content.Context;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.Arrays;

/**
 * Joins a fleet as a phone and leaves it: {@code JOIN-TEXT}. Prints whether the coordinator was notified, and which
 * files remain.
 */
public final class LeaveFleet {
    private LeaveFleet() {}

    public static void main(String[] words) throws IOException, SedgeException {
        Context context = new Context();
        AgentConfig config = Membership.join(context, words[0]);
        File models = new File(Membership.state(context, config), "blobs");
        Files.createDirectories(models.toPath());
        Files.write(new File(models, "a model").toPath(), new byte[1]);
        File photos = new File(context.getNoBackupFilesDir(), "photos");
        Files.createDirectories(photos.toPath());
        Files.write(new File(photos, "a photo").toPath(), new byte[1]);
        Files.createSymbolicLink(new File(models, "link").toPath(), photos.toPath());
        for (String other : new String[] {config.fleet + ".earlier", "other." + config.device}) {
            File state = new File(models.getParentFile().getParentFile(), "state-" + other);
            Files.createDirectories(state.toPath());
            Files.write(new File(state, "journal").toPath(), new byte[1]);
        }
        Membership.log(context).say("Connected.");
        boolean heard = Membership.leave(context);
        File state = Membership.state(context, config);
        System.out.println(heard + " " + Arrays.toString(state.list()) + " " + Membership.config(context)
                + " '" + Membership.log(context).now() + "'");
        System.out.println(Membership.leave(context));
    }
}
