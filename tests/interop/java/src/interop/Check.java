package interop;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** A method (Setting) that throws when something is not as it must be. The Python side finds these by their text. */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
@interface Check {
    /** Which wire protocols it is run with: "v2 v3", "v2" or "v3". */
    String wires() default "v2 v3";

    /** Run with each of the four digest types. */
    boolean perDigest() default false;
}
