package pulsar;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * A client of Pulsar that writes, follows and reads one topic. Messages are numbered from 0; each has the bytes that its
 * number says.
 *
 * <p>Commands are lines of standard input, at whose end it ends: "produce RATE" (messages in a second, in the
 * background; after "finish" with the next number), "follow" (a durable subscription, in the background), "finish" (the
 * producer ends with all that it sent acknowledged), "read" (from the earliest message on). Answers are lines:
 * "acknowledged N", "followed N", "read N", "finished COUNT", "end COUNT", and "failed WHAT".
 */
public final class Talk {
    private static final String NAME = "talk";
    private final PulsarClient client;
    private final String topic;
    private final AtomicBoolean producing = new AtomicBoolean();
    private Thread producer;
    private int count;

    private Talk(PulsarClient client, String topic) {
        this.client = client;
        this.topic = topic;
    }

    /** Arguments: the broker's URL and the topic. */
    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).ioThreads(1).listenerThreads(1).build();
        Talk talk = new Talk(client, args[1]);
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                talk.obey(line.split(" "));
            }
        } catch (Exception failure) {
            say("failed " + failure);
        }
        Runtime.getRuntime().halt(0);
    }

    private void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "produce":
                double rate = Double.parseDouble(words[1]);
                producer = background(() -> produce(rate));
                break;
            case "follow":
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(NAME)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                background(() -> follow(consumer));
                break;
            case "finish":
                producing.set(false);
                producer.join();
                break;
            case "read":
                read();
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void produce(double rate) throws Exception {
        long apart = (long) (TimeUnit.SECONDS.toNanos(1) / rate);
        producing.set(true);
        // Without a limit of time the client sends again until the broker has it; the broker knows repetitions by the
        // producer's name and their sequence ids.
        try (Producer<byte[]> to = client.newProducer().topic(topic).producerName(NAME).initialSequenceId(-1)
                .enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).create()) {
            long next = System.nanoTime();
            while (producing.get()) {
                int sent = count++;
                to.newMessage().sequenceId(sent).value(payload(sent)).sendAsync().whenComplete((id, failure) ->
                    say(failure == null ? "acknowledged " + sent : "failed " + sent + ": " + failure));
                next += apart;
                LockSupport.parkNanos(next - System.nanoTime());
            }
            to.flush();
        }
        say("finished " + count);
    }

    private void follow(Consumer<byte[]> from) throws Exception {
        while (true) {
            Message<byte[]> message = from.receive();
            say("followed " + number(message));
            from.acknowledge(message);
        }
    }

    private void read() throws Exception {
        int found = 0;
        try (Reader<byte[]> from = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            while (from.hasMessageAvailable()) {
                Message<byte[]> message = from.readNext(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("no message came within a minute after " + found);
                }
                say("read " + number(message));
                found++;
            }
        }
        say("end " + found);
    }

    private static Thread background(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                say("failed " + failure);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static byte[] payload(int number) {
        byte[] bytes = new byte[24 + number * 37 % 200];
        Arrays.fill(bytes, (byte) ('a' + number % 26));
        byte[] head = ("message " + number + " ").getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(head, 0, bytes, 0, head.length);
        return bytes;
    }

    /** Its number; an error for bytes that are not those of the number. */
    private static int number(Message<byte[]> message) {
        byte[] bytes = message.getData();
        int number = Integer.parseInt(new String(bytes, StandardCharsets.US_ASCII).split(" ")[1]);
        if (!Arrays.equals(bytes, payload(number))) {
            throw new IllegalStateException("message " + number + " has other bytes");
        }
        return number;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    private interface Work {
        void run() throws Exception;
    }
}
