package org.sedge.android;

import android.content.Context;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.AgentConfig;
import org.sedge.edge.PersonalModel;
import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Backend;

import java.io.IOException;
import java.util.List;

/**
 * This phone's own model, which an app can use for predictions: {@code Model.open(context).predict(rows)}.
 *
 * <p>It works during training, too, and always uses the newest model. Opening it usually takes a moment. It takes
 * minutes if the bundle's programs have not been tried out yet ({@link TrialProcess}), so do not open it on an app's
 * main thread.
 */
public final class Model {
    private Model() {}

    /**
     * Opens the newest run's model, using the runtimes that the app was built with.
     *
     * @throws SedgeException if this phone has not joined a fleet, has not received a model yet, or cannot read or run
     *     it
     */
    public static PersonalModel open(Context context) throws SedgeException, IOException {
        return open(context, null, Backends.installed());
    }

    /**
     * Opens the model of a run.
     *
     * @param run the name of the run; null for the newest
     * @param backends the runtimes that may run it, in order of preference
     */
    public static PersonalModel open(Context context, @Nullable String run, List<Backend> backends)
            throws SedgeException, IOException {
        AgentConfig config = Membership.config(context);
        if (config == null) {
            throw new SedgeException.ConfigError("This phone has not joined a fleet.");
        }
        if (backends.isEmpty()) {
            throw new SedgeException.ConfigError(Backends.NONE);
        }
        return new PersonalModel(Membership.state(context, config), run, backends, new TrialProcess(context));
    }
}
