package org.sedge.edge.host;

import org.sedge.edge.AgentConfig;

import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Connects to each broker, {@code URL…}, and prints why it could not. */
public final class SayWhy implements Link.Owner {
    private boolean said;

    private SayWhy() {}

    public static void main(String[] words) throws Exception {
        for (String url : words) {
            AgentConfig config = new AgentConfig("pi-1", "test", url, new byte[32], null);
            SayWhy owner = new SayWhy();
            BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
            Link link = new Link(config, "password", "up", "down", owner, new Random(1), tasks);
            link.keep();
            while (!owner.said) {
                tasks.take().run();
            }
            link.close();
        }
    }

    @Override
    public byte[] will() {
        return new byte[1];
    }

    @Override
    public void connected() { }

    @Override
    public void received(String topic, byte[] payload) { }

    @Override
    public void disconnected(String reason) {
        System.out.println(reason);
        said = true;
    }

    @Override
    public long fleetDevices() {
        return 0;
    }
}
