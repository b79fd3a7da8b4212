import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.DoubleBinaryOperator;
import java.util.function.Function;
import java.util.function.IntFunction;
import java.util.function.IntToLongFunction;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.function.ToLongFunction;
import java.util.stream.Collectors;

/** Prints what lambdas and method references of every kind give. */
public class Lambdas {
    private final String name;

    private Lambdas(String name) {
        this.name = name;
    }

    interface Named {
        String name();

        default Supplier<String> twice() {
            return () -> name() + name();
        }

        static Supplier<String> of(Named named) {
            return named::name;
        }
    }

    /** Has a lambda of the same number and type as its parent. */
    static class Child extends Lambdas {
        Child() {
            super("parent");
        }

        Supplier<String> own() {
            return () -> "child of " + hidden("x");
        }

        private String hidden(String text) {
            return "Child.hidden " + text;
        }
    }

    private Supplier<String> ofParent() {
        return () -> name + hidden("y");
    }

    private String hidden(String text) {
        return " Lambdas.hidden " + text;
    }

    private Function<String, String> reference() {
        return this::hidden;
    }

    private static long square(int value) {
        return (long) value * value;
    }

    private static <T> T shown(T value) {
        System.out.println(value);
        return value;
    }

    private static int sum(Integer... values) {
        return Arrays.stream(values).mapToInt(Integer::intValue).sum();
    }

    public static void main(String[] words) {
        long captured = 1L << 40;
        double real = 0.5;
        boolean yes = true;
        byte small = 7;
        char letter = 'c';
        Supplier<String> all = () -> captured + " " + real + " " + yes + " " + small + " " + letter;
        shown(all.get());
        IntToLongFunction primitive = Lambdas::square;
        shown(primitive.applyAsLong(70_000));
        ToLongFunction<Integer> unboxed = Lambdas::square;
        shown(unboxed.applyAsLong(3));
        Function<Integer, Long> boxed = Lambdas::square;
        shown(boxed.apply(4));
        LongSupplier widened = "four"::length;
        shown(widened.getAsLong());
        DoubleBinaryOperator static2 = Math::max;
        shown(static2.applyAsDouble(1, 2));
        BooleanSupplier bound = new ArrayList<String>()::isEmpty;
        shown(bound.getAsBoolean());
        Function<String, Lambdas> creates = Lambdas::new;
        shown(creates.apply("made").name);
        IntFunction<int[]> array = int[]::new;
        shown(array.apply(3).length);
        Function<Integer[], Integer> varargs = Lambdas::sum;
        shown(varargs.apply(new Integer[] {1, 2, 3}));
        BiFunction<String, String, Integer> unbound = String::compareTo;
        shown(unbound.apply("b", "a"));
        Comparator<Integer> order = Integer::compare;
        shown(order.compare(1, 2));
        Consumer<String> dropped = Lambdas::shown;
        dropped.accept("dropped");
        Consumer<List<String>> wide = list -> list.add("x");
        List<String> list = new ArrayList<>();
        wide.accept(list);
        shown(list);
        Runnable nested = () -> {
            Supplier<Supplier<String>> inner = () -> () -> "inner " + captured;
            shown(inner.get().get());
        };
        nested.run();
        shown(new Lambdas("p").ofParent().get());
        Child child = new Child();
        shown(child.own().get());
        shown(((Lambdas) child).ofParent().get());
        shown(((Lambdas) child).reference().apply("z"));
        Named named = () -> "n";
        shown(named.twice().get());
        shown(Named.of(named).get());
        Map<String, Integer> counts = new HashMap<>();
        for (String word : "a b a".split(" ")) {
            counts.merge(word, 1, Integer::sum);
        }
        shown(counts);
        shown(Arrays.asList(3, 1, 2).stream().sorted(Comparator.reverseOrder()).map(String::valueOf)
                .collect(Collectors.joining(",")));
    }
}
