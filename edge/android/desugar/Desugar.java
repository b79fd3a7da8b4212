import static org.objectweb.asm.Opcodes.*;

import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.FieldVisitor;
import org.objectweb.asm.Handle;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Type;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipOutputStream;

/**
 * Replaces lambdas and method references by classes, because Android has no LambdaMetafactory.
 *
 * <p>{@code OUT.jar IN.jar…}: all classes of the jars in one.
 *
 * <p>What Android's own D8 does, which no Debian has. The instruction that makes a lambda becomes a call of a static
 * method of a new class, which keeps the captured values and calls the lambda's code. That code is no longer private,
 * and where it belongs to an object it gets a name that no subclass has. Lambdas that are serializable, or implement
 * further interfaces, are refused by name.
 */
public final class Desugar extends ClassVisitor {
    private static final String METAFACTORY = "java/lang/invoke/LambdaMetafactory";

    private final Map<String, byte[]> made;
    private final Set<String> opened;
    private String owner;
    private boolean inInterface;
    private int count;

    private Desugar(ClassVisitor next, Set<String> opened, Map<String, byte[]> made) {
        super(ASM9, next);
        this.opened = opened;
        this.made = made;
    }

    public static void main(String[] words) throws IOException {
        try (ZipOutputStream out = new ZipOutputStream(new FileOutputStream(words[0]))) {
            for (String word : Arrays.asList(words).subList(1, words.length)) {
                copy(new File(word), out);
            }
        }
    }

    private static void copy(File jar, ZipOutputStream out) throws IOException {
        try (ZipFile in = new ZipFile(jar)) {
            for (ZipEntry entry : Collections.list(in.entries())) {
                if (entry.getName().endsWith(".class")) {
                    for (Map.Entry<String, byte[]> found : desugared(in.getInputStream(entry)).entrySet()) {
                        out.putNextEntry(new ZipEntry(found.getKey() + ".class"));
                        out.write(found.getValue());
                    }
                }
            }
        }
    }

    /** A class and those that its lambdas have become, by name. */
    private static Map<String, byte[]> desugared(InputStream in) throws IOException {
        ClassReader reader = new ClassReader(in);
        Map<String, byte[]> made = new LinkedHashMap<>();
        ClassWriter writer = new ClassWriter(0);
        reader.accept(new Desugar(writer, opened(reader), made), 0);
        made.put(reader.getClassName(), writer.toByteArray());
        return made;
    }

    /** The methods of the class that its lambdas call, which other classes will have to reach. */
    private static Set<String> opened(ClassReader reader) {
        Set<String> called = new HashSet<>();
        Set<String> opened = new HashSet<>();
        String owner = reader.getClassName();
        reader.accept(new ClassVisitor(ASM9) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String type, String generic, String[] thrown) {
                if ((access & ACC_PRIVATE) != 0) {
                    opened.add(name + type);
                }
                return new MethodVisitor(ASM9) {
                    @Override
                    public void visitInvokeDynamicInsn(String name, String type, Handle how, Object... what) {
                        if (what.length > 1 && what[1] instanceof Handle) {
                            Handle code = (Handle) what[1];
                            called.add(code.getOwner().equals(owner) ? code.getName() + code.getDesc() : "");
                        }
                    }
                };
            }
        }, 0);
        opened.retainAll(called);
        return opened;
    }

    @Override
    public void visit(int version, int access, String name, String generic, String above, String[] interfaces) {
        owner = name;
        inInterface = (access & ACC_INTERFACE) != 0;
        super.visit(version, access, name, generic, above, interfaces);
    }

    private boolean isOpened(String owner, String name, String type) {
        return owner.equals(this.owner) && opened.contains(name + type);
    }

    private String nameOf(String name, boolean ofClass) {
        return ofClass || name.equals("<init>") ? name : name + "$" + owner.replace('/', '_');
    }

    @Override
    public MethodVisitor visitMethod(int access, String name, String type, String generic, String[] thrown) {
        boolean opens = opened.contains(name + type);
        int visible = opens ? access & ~ACC_PRIVATE | (inInterface ? ACC_PUBLIC : 0) : access;
        String called = opens ? nameOf(name, (access & ACC_STATIC) != 0) : name;
        return new MethodVisitor(ASM9, super.visitMethod(visible, called, type, generic, thrown)) {
            @Override
            public void visitMethodInsn(int code, String owner, String name, String type, boolean itf) {
                boolean moved = isOpened(owner, name, type) && code != INVOKESTATIC && !name.equals("<init>");
                int call = itf ? INVOKEINTERFACE : INVOKEVIRTUAL;
                super.visitMethodInsn(moved ? call : code, owner, moved ? nameOf(name, false) : name, type, itf);
            }

            @Override
            public void visitInvokeDynamicInsn(String name, String type, Handle how, Object... what) {
                if (!how.getOwner().equals(METAFACTORY) || !how.getName().equals("metafactory")) {
                    throw new IllegalArgumentException(owner.replace('/', '.') + "." + called
                            + ": found " + how.getName() + ", expected plain lambdas and method references alone");
                }
                String lambda = owner + "$$Lambda$" + count++;
                make(lambda, name, type, (Type) what[0], (Handle) what[1], (Type) what[2]);
                super.visitMethodInsn(INVOKESTATIC, lambda, "make", type, false);
            }
        };
    }

    /** Writes the class of one lambda: {@code type} is of its captured values, and of the interface. */
    private void make(String lambda, String method, String type, Type erased, Handle code, Type actual) {
        Type[] captured = Type.getArgumentTypes(type);
        String[] interfaces = {Type.getReturnType(type).getInternalName()};
        String init = Type.getMethodDescriptor(Type.VOID_TYPE, captured);
        ClassWriter writer = new ClassWriter(ClassWriter.COMPUTE_MAXS);
        writer.visit(V1_8, ACC_FINAL | ACC_SUPER | ACC_SYNTHETIC, lambda, null, "java/lang/Object", interfaces);
        MethodVisitor body = writer.visitMethod(0, "<init>", init, null, null);
        body.visitVarInsn(ALOAD, 0);
        body.visitMethodInsn(INVOKESPECIAL, "java/lang/Object", "<init>", "()V", false);
        int slot = 1;
        for (int i = 0; i < captured.length; i++) {
            FieldVisitor field = writer.visitField(ACC_FINAL, "f" + i, captured[i].getDescriptor(), null, null);
            field.visitEnd();
            body.visitVarInsn(ALOAD, 0);
            body.visitVarInsn(captured[i].getOpcode(ILOAD), slot);
            body.visitFieldInsn(PUTFIELD, lambda, "f" + i, captured[i].getDescriptor());
            slot += captured[i].getSize();
        }
        end(body, RETURN);

        body = writer.visitMethod(ACC_STATIC, "make", type, null, null);
        body.visitTypeInsn(NEW, lambda);
        body.visitInsn(DUP);
        slot = 0;
        for (Type value : captured) {
            body.visitVarInsn(value.getOpcode(ILOAD), slot);
            slot += value.getSize();
        }
        body.visitMethodInsn(INVOKESPECIAL, lambda, "<init>", init, false);
        end(body, ARETURN);

        call(writer.visitMethod(ACC_PUBLIC, method, erased.getDescriptor(), null, null), lambda, captured, erased,
                code, actual);
        made.put(lambda, writer.toByteArray());
    }

    private void call(MethodVisitor body, String lambda, Type[] captured, Type erased, Handle code, Type actual) {
        boolean creates = code.getTag() == H_NEWINVOKESPECIAL;
        boolean ofClass = code.getTag() == H_INVOKESTATIC;
        Type[] declared = Type.getArgumentTypes(code.getDesc());
        Type[] taken = declared;
        if (!creates && !ofClass) { // the object comes first
            taken = new Type[declared.length + 1];
            taken[0] = Type.getObjectType(code.getOwner());
            System.arraycopy(declared, 0, taken, 1, declared.length);
        }
        if (creates) {
            body.visitTypeInsn(NEW, code.getOwner());
            body.visitInsn(DUP);
        }
        for (int i = 0; i < captured.length; i++) {
            body.visitVarInsn(ALOAD, 0);
            body.visitFieldInsn(GETFIELD, lambda, "f" + i, captured[i].getDescriptor());
        }
        Type[] given = erased.getArgumentTypes();
        int slot = 1;
        for (int i = 0; i < given.length; i++) {
            body.visitVarInsn(given[i].getOpcode(ILOAD), slot);
            slot += given[i].getSize();
            Type real = actual.getArgumentTypes()[i];
            convert(body, given[i], real);
            convert(body, real, taken[captured.length + i]);
        }
        boolean opens = isOpened(code.getOwner(), code.getName(), code.getDesc());
        String name = opens ? nameOf(code.getName(), ofClass) : code.getName();
        int how = ofClass ? INVOKESTATIC : creates ? INVOKESPECIAL
                : code.isInterface() ? INVOKEINTERFACE : INVOKEVIRTUAL;
        body.visitMethodInsn(how, code.getOwner(), name, code.getDesc(), code.isInterface());
        Type result = creates ? Type.getObjectType(code.getOwner()) : Type.getReturnType(code.getDesc());
        Type wanted = erased.getReturnType();
        if (wanted.getSort() != Type.VOID) {
            convert(body, result, wanted);
        } else if (result.getSort() != Type.VOID) {
            body.visitInsn(result.getSize() == 2 ? POP2 : POP);
        }
        end(body, wanted.getOpcode(IRETURN));
    }

    private static void end(MethodVisitor body, int code) {
        body.visitInsn(code);
        body.visitMaxs(0, 0);
        body.visitEnd();
    }

    /** As Java converts an argument: boxing, unboxing, wider numbers, or a cast that the compiler has proven. */
    private static void convert(MethodVisitor body, Type from, Type to) {
        boolean plain = from.getSort() < Type.ARRAY;
        if (to.getSort() < Type.ARRAY) {
            Type number = from;
            if (!plain) {
                Type boxed = from.equals(Type.getType(Object.class)) || unboxed(from) == null ? boxed(to) : from;
                number = unboxed(boxed);
                body.visitTypeInsn(CHECKCAST, boxed.getInternalName());
                String name = number.getClassName() + "Value";
                String type = Type.getMethodDescriptor(number);
                body.visitMethodInsn(INVOKEVIRTUAL, boxed.getInternalName(), name, type, false);
            }
            widen(body, number, to);
        } else if (plain) {
            String type = Type.getMethodDescriptor(boxed(from), from);
            body.visitMethodInsn(INVOKESTATIC, boxed(from).getInternalName(), "valueOf", type, false);
        } else if (!from.equals(to) && !to.equals(Type.getType(Object.class))) {
            body.visitTypeInsn(CHECKCAST, to.getInternalName());
        }
    }

    private static void widen(MethodVisitor body, Type from, Type to) {
        int[][] codes = {{NOP, I2F, I2L, I2D}, {NOP, NOP, NOP, F2D}, {NOP, L2F, NOP, L2D}, {NOP, NOP, NOP, NOP}};
        int code = codes[Math.max(from.getSort() - Type.INT, 0)][Math.max(to.getSort() - Type.INT, 0)];
        if (code != NOP) {
            body.visitInsn(code);
        }
    }

    private static final String[][] BOXES = {
        {"Z", "Boolean"}, {"C", "Character"}, {"B", "Byte"}, {"S", "Short"}, {"I", "Integer"}, {"F", "Float"},
        {"J", "Long"}, {"D", "Double"},
    };

    private static Type boxed(Type plain) {
        for (String[] box : BOXES) {
            if (box[0].equals(plain.getDescriptor())) {
                return Type.getObjectType("java/lang/" + box[1]);
            }
        }
        throw new IllegalArgumentException(plain.toString());
    }

    private static Type unboxed(Type type) {
        for (String[] box : BOXES) {
            if (type.getInternalName().equals("java/lang/" + box[1])) {
                return Type.getType(box[0]);
            }
        }
        return null;
    }
}
