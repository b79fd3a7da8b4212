package org.sedge.edge.wire;

import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The subset of MessagePack that the protocol uses. Values are written in their shortest form and read strictly.
 *
 * <p>Values are Long, Double, Boolean, String, byte[], null, List, Map with text keys, and {@link Struct}. The library
 * of the same name would save a hundred lines here, but add 130 kB to every app.
 */
public final class MsgPack {
    private static final int MAX_DEPTH = 32;

    private MsgPack() {}

    /** Returns the encoding of a value. */
    public static byte[] pack(Object value) {
        Writer writer = new Writer();
        writer.value(value);
        return writer.out.toByteArray();
    }

    /**
     * Decodes the bytes. Values for which the type has no place are dropped, because lists and maps encoded as one byte
     * each would take thirty times as much memory.
     *
     * @throws IllegalArgumentException unless the bytes are exactly one value
     */
    public static Object unpack(byte[] data, Type<?> type) {
        Reader reader = new Reader(ByteBuffer.wrap(data));
        Object value = reader.value(0, type);
        if (reader.in.hasRemaining()) {
            throw new IllegalArgumentException(reader.in.remaining() + " bytes behind the value");
        }
        return value;
    }

    /** Writes values one after another. */
    static final class Writer {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();

        void value(Object value) {
            if (value == null) {
                out.write(0xc0);
            } else if (value instanceof Boolean) {
                out.write((Boolean) value ? 0xc3 : 0xc2);
            } else if (value instanceof Long) {
                integer((Long) value);
            } else if (value instanceof Double) {
                out.write(0xcb);
                bytes(Double.doubleToRawLongBits((Double) value), 8);
            } else if (value instanceof String) {
                byte[] text = ((String) value).getBytes(StandardCharsets.UTF_8);
                head(text.length, 32, 0xa0, 0xd9);
                out.write(text, 0, text.length);
            } else if (value instanceof byte[]) {
                byte[] data = (byte[]) value;
                head(data.length, 0, 0, 0xc4);
                out.write(data, 0, data.length);
            } else if (value instanceof List) {
                head(((List<?>) value).size(), 16, 0x90, 0xdb);
                for (Object item : (List<?>) value) {
                    value(item);
                }
            } else if (value instanceof Map) {
                map(((Map<?, ?>) value).size());
                for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                    value(entry.getKey());
                    value(entry.getValue());
                }
            } else {
                ((Struct<?>) value).write(this);
            }
        }

        void map(int size) {
            head(size, 16, 0x80, 0xdd);
        }

        private void integer(long value) {
            if (value >= -32 && value < 128) {
                out.write((int) value);
                return;
            }
            boolean negative = value < 0;
            int power = 0;
            while (power < 3 && (negative ? value < -1L << (8 << power) - 1 : value >>> (8 << power) != 0)) {
                power++;
            }
            out.write((negative ? 0xd0 : 0xcc) + power);
            bytes(value, 1 << power);
        }

        /**
         * Writes a size. A size below {@code fixed} is part of the tag; others take 8 bits (if {@code tag} allows
         * that), 16 or 32 bits.
         */
        private void head(int size, int fixed, int fixedTag, int tag) {
            boolean hasEight = tag == 0xc4 || tag == 0xd9;
            if (size < fixed) {
                out.write(fixedTag | size);
            } else if (size < 256 && hasEight) {
                out.write(tag);
                out.write(size);
            } else {
                out.write(size < 65536 ? tag + 1 : tag + 2);
                bytes(size, size < 65536 ? 2 : 4);
            }
        }

        private void bytes(long value, int count) {
            for (int i = count - 1; i >= 0; i--) {
                out.write((int) (value >>> 8 * i));
            }
        }
    }

    private static final class Reader {
        private static final String ENDS = "the value ends early";

        final ByteBuffer in;

        Reader(ByteBuffer in) {
            this.in = in;
        }

        /** Reads the next value. Without a type, only checks that the value is well-formed. */
        Object value(int depth, Type<?> type) {
            if (depth > MAX_DEPTH) {
                throw new IllegalArgumentException("nested deeper than " + MAX_DEPTH);
            }
            int tag = (int) unsigned(1);
            if (tag < 0x80) {
                return (long) tag;
            } else if (tag < 0x90) {
                return map(tag & 15, depth, type);
            } else if (tag < 0xa0) {
                return list(tag & 15, depth, type);
            } else if (tag < 0xc0) {
                return text(tag & 31, type);
            } else if (tag >= 0xe0) {
                return (long) (byte) tag;
            }
            switch (tag) {
                case 0xc0:
                    return null;
                case 0xc2:
                case 0xc3:
                    return tag == 0xc3;
                case 0xc4:
                case 0xc5:
                case 0xc6:
                    return bytes(unsigned(1 << tag - 0xc4));
                case 0xc7:
                case 0xc8:
                case 0xc9:
                    return extension(unsigned(1 << tag - 0xc7));
                case 0xca:
                    return (double) Float.intBitsToFloat((int) unsigned(4));
                case 0xcb:
                    return Double.longBitsToDouble(unsigned(8));
                case 0xcc:
                case 0xcd:
                case 0xce:
                    return unsigned(1 << tag - 0xcc);
                case 0xcf:
                    long wide = unsigned(8);
                    return wide >= 0 ? (Object) wide : new BigInteger(Long.toUnsignedString(wide));
                case 0xd0:
                    return (long) (byte) unsigned(1);
                case 0xd1:
                    return (long) (short) unsigned(2);
                case 0xd2:
                    return (long) (int) unsigned(4);
                case 0xd3:
                    return unsigned(8);
                case 0xd4:
                case 0xd5:
                case 0xd6:
                case 0xd7:
                case 0xd8:
                    return extension(1 << tag - 0xd4);
                case 0xd9:
                case 0xda:
                case 0xdb:
                    return text(unsigned(1 << tag - 0xd9), type);
                case 0xdc:
                case 0xdd:
                    return list(unsigned(2 << tag - 0xdc), depth, type);
                case 0xde:
                case 0xdf:
                    return map(unsigned(2 << tag - 0xde), depth, type);
                default:
                    throw new IllegalArgumentException("no value begins with byte " + tag);
            }
        }

        private long unsigned(int count) {
            require(count);
            long value = 0;
            for (int i = 0; i < count; i++) {
                value = value << 8 | in.get() & 0xff;
            }
            return value;
        }

        private byte[] bytes(long count) {
            require(count);
            byte[] data = new byte[(int) count];
            in.get(data);
            return data;
        }

        /** Reads text. Text without a type is dropped, so its encoding is not checked. */
        private String text(long count, Type<?> type) {
            byte[] data = bytes(count);
            try {
                return type == null ? null : StandardCharsets.UTF_8.newDecoder()
                        .onMalformedInput(CodingErrorAction.REPORT).decode(ByteBuffer.wrap(data)).toString();
            } catch (CharacterCodingException error) {
                throw new IllegalArgumentException("text that is not UTF-8", error);
            }
        }

        /** Skips a value of an extension type, which can only belong to an unknown key. */
        private Object extension(long count) {
            bytes(count + 1);
            return Reader.class;
        }

        private List<Object> list(long count, int depth, Type<?> type) {
            require(count); // each item takes at least one byte
            Type<?> item = type == null ? null : type.part(null);
            List<Object> found = new ArrayList<>();
            for (long i = 0; i < count; i++) {
                Object value = value(depth + 1, item);
                if (item != null) {
                    found.add(value);
                }
            }
            return found;
        }

        private Map<String, Object> map(long count, int depth, Type<?> type) {
            require(2 * count);
            if (type != null && count > type.most()) {
                throw new IllegalArgumentException("found " + count + " entries, expected at most " + type.most());
            }
            Map<String, Object> found = new LinkedHashMap<>();
            for (long i = 0; i < count; i++) {
                Object key = value(depth + 1, type);
                if (type != null && !(key instanceof String)) {
                    throw new IllegalArgumentException("a map's key that is no text");
                }
                Type<?> part = type == null ? null : type.part((String) key);
                Object value = value(depth + 1, part);
                if (part != null) {
                    found.put((String) key, value);
                }
            }
            return found;
        }

        private void require(long count) {
            if (count > in.remaining()) {
                throw new IllegalArgumentException(ENDS);
            }
        }
    }
}
