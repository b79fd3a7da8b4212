package org.sedge.edge.backends;

import org.sedge.edge.Classified;
import org.sedge.edge.PersonalModel;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.Npz;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.rounds.State;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Order;

import java.io.File;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Sends requests to the model in a state folder: {@code FOLDER RUN BACKEND-CLASS REQUEST…}, where "-" stands for the
 * newest run. The requests are:
 *
 * <pre>
 * runs NAME BUNDLE BASE MODEL START   commits a state that has this run after the earlier ones; "-" means none
 * order FILE                    commits a state with this order
 * open                          opens the model again
 * predict INPUTS.npz OUT        writes the outputs, and prints the shape of a row
 * export FILE                   writes the model
 * classify INPUTS.npz           prints classes, labels and the sum of the probabilities of each row
 * </pre>
 *
 * <p>An error is printed as one line.
 */
public final class AskModel {
    private static final Map<String, Kept> RUNS = new LinkedHashMap<>();
    private static PersonalModel model;

    private AskModel() {}

    public static void main(String[] words) throws Exception {
        for (int i = 3; i < words.length; i++) {
            try {
                answer(words, words[i].split(" "));
            } catch (SedgeException error) {
                System.out.println(error.getMessage());
            }
        }
        if (model != null) {
            model.close();
        }
    }

    private static void answer(String[] words, String[] question) throws Exception {
        File folder = new File(words[0]);
        switch (question[0]) {
            case "runs":
                RUNS.remove(question[1]);
                RUNS.put(question[1], Kept.SCHEMA.empty().with(Kept.BUNDLE, Hex.decode(question[2]))
                        .with(Kept.BASE, Hex.decode(question[3]))
                        .with(Kept.MODEL, question[4].equals("-") ? null : Hex.decode(question[4]))
                        .with(Kept.START, question[5].equals("-") ? null : Hex.decode(question[5])));
                commit(folder, State.SCHEMA.empty().with(State.RUNS, RUNS));
                break;
            case "order":
                Order order = Order.SCHEMA.decode(Disk.read(new File(question[1])));
                commit(folder, State.SCHEMA.empty().with(State.ORDERS, Collections.singletonMap(order.run, order)));
                break;
            case "open":
                model = new PersonalModel(folder, words[1].equals("-") ? null : words[1],
                        Collections.singletonList(Backend.of(words[2])), new Trusting());
                break;
            case "predict":
                Rows outputs = predicted(Npz.readInputs(new File(question[1])));
                Disk.replace(new File(question[2]), Vectors.bytes(outputs.floats()));
                System.out.println(Rows.tuple(outputs.shape()) + " " + model.trained());
                break;
            case "export":
                model.export(new File(question[1]));
                break;
            default:
                Classified found = model.classify(Npz.readInputs(new File(question[1])).get("x"));
                System.out.println(Arrays.toString(found.classes().longs()) + " " + found.labels() + " "
                        + Arrays.toString(found.probabilities().floats()));
        }
    }

    private static Rows predicted(Map<String, Rows> inputs) throws SedgeException {
        return inputs.containsKey("x") ? model.predict(inputs.get("x")) : model.predict(inputs);
    }

    private static void commit(File folder, State state) throws SedgeException {
        new Journal(new File(folder, "journal")).commit(state.encode());
    }
}
