//! Arrays: files without a header whose named attributes hold shape, type and order
//! (`docs/records/arrays.md`).

use std::fmt;

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::{FileAttributes, LayoutHints};

use crate::{Copy, File, Mapping, NewMode, OpenOptions, Pool};

/// Names of the attributes, sorted.
const DTYPE: &str = "array.dtype";
const ORDER: &str = "array.order";
const SHAPE: &str = "array.shape";
/// Longest type description.
const DTYPE_BYTES_MAX: usize = 64;
/// Most dimensions: numpy's limit.
const DIMENSIONS_MAX: usize = 64;

/// The order in which elements lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last index varies fastest (C, numpy's default).
    C,
    /// The first index varies fastest (Fortran, R, MATLAB).
    F,
}

impl fmt::Display for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Order::C => "C",
            Order::F => "F",
        })
    }
}

/// What an array is: its shape, the type of its elements, and their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayType {
    shape: Vec<u64>,
    dtype: String,
    item_bytes: u64,
    order: Order,
}

impl ArrayType {
    /// Checks the parts. `dtype` is numpy's array-protocol string for plain numbers, such as
    /// `<f8`, `|b1` or `<c16`: byte order, kind (one of `b i u f c S V`), bytes of an element.
    /// Unicode and dates count their own units and objects are pointers: those are refused.
    pub fn new(shape: &[u64], dtype: &str, order: Order) -> Result<ArrayType> {
        let item_bytes = item_bytes(dtype)?;
        if shape.len() > DIMENSIONS_MAX {
            return Err(invalid(format!(
                "an array has at most {DIMENSIONS_MAX} dimensions, not {}",
                shape.len()
            )));
        }
        let bytes = shape.iter().try_fold(item_bytes, |bytes, extent| bytes.checked_mul(*extent));
        if bytes.is_none_or(|bytes| bytes > limits::FILE_BYTES_MAX) {
            return Err(Error::new(
                ErrorKind::TooBig,
                format!(
                    "an array of shape {} and type {dtype} is larger than the largest file",
                    Shape(shape)
                ),
            ));
        }
        Ok(ArrayType { shape: shape.to_vec(), dtype: dtype.to_owned(), item_bytes, order })
    }

    /// Extents, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The element's type as numpy writes it.
    #[must_use]
    pub fn dtype(&self) -> &str {
        &self.dtype
    }

    /// Bytes of an element.
    #[must_use]
    pub fn item_bytes(&self) -> u64 {
        self.item_bytes
    }

    /// The order in which elements lie in the file.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Bytes of all elements.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // `new` has checked the product.
        self.shape.iter().product::<u64>() * self.item_bytes
    }

    /// The named attributes that describe this array type.
    #[must_use]
    pub fn to_named(&self) -> FileAttributes {
        let shape: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        vec![
            (DTYPE.to_owned(), self.dtype.clone().into_bytes()),
            (ORDER.to_owned(), self.order.to_string().into_bytes()),
            (SHAPE.to_owned(), shape.join(",").into_bytes()),
        ]
    }

    /// The array type that a file's attributes describe; `None` when the file is no array.
    pub fn from_named(named: &FileAttributes) -> Result<Option<ArrayType>> {
        let get = |name: &str| {
            let value = named.iter().find(|(known, _)| known == name)?;
            std::str::from_utf8(&value.1).ok()
        };
        let (Some(dtype), Some(order), Some(shape)) = (get(DTYPE), get(ORDER), get(SHAPE)) else {
            return Ok(None);
        };
        let wrong = |what| Error::new(ErrorKind::Corrupt, format!("the array's {what} makes no sense"));
        let order = match order {
            "C" => Order::C,
            "F" => Order::F,
            _ => return Err(wrong("order")),
        };
        let extents: Option<Vec<u64>> = if shape.is_empty() {
            Some(Vec::new())
        } else {
            shape.split(',').map(|part| part.parse().ok()).collect()
        };
        ArrayType::new(&extents.ok_or_else(|| wrong("shape"))?, dtype, order).map(Some)
    }
}

impl fmt::Display for ArrayType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "shape {}, type {}, order {}", Shape(&self.shape), self.dtype, self.order)
    }
}

struct Shape<'a>(&'a [u64]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(formatter, "({})", extents.join(", "))
    }
}

fn item_bytes(dtype: &str) -> Result<u64> {
    let refuse = || {
        invalid(format!(
            "'{}' is no type of plain elements; give numpy's string, such as <f8, <i4, |u1 or <c16",
            dtype.escape_debug()
        ))
    };
    let bytes = dtype.as_bytes();
    let ([order, kind, digits @ ..], true) = (bytes, dtype.len() <= DTYPE_BYTES_MAX) else {
        return Err(refuse());
    };
    if !b"<>|=".contains(order) || !b"biufcSV".contains(kind) || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refuse());
    }
    match dtype[2..].parse::<u64>() {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(refuse()),
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// An open array.
#[derive(Debug)]
pub struct Array {
    file: File,
    kind: ArrayType,
}

impl Array {
    /// The file that holds the elements, from its first byte on.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Shape, type and order.
    #[must_use]
    pub fn kind(&self) -> &ArrayType {
        &self.kind
    }

    /// The elements in shared memory, when all of them are on this machine; see [`File::map`].
    pub fn map(&self, writable: bool) -> Result<Mapping> {
        self.file.map(writable)
    }

    /// A fetched copy of the elements, merged element by element.
    pub fn into_copy(self) -> Result<Copy> {
        let bytes = usize::try_from(self.kind.bytes()).map_err(|_| {
            Error::new(ErrorKind::TooBig, "the array is larger than this machine's addresses")
        })?;
        self.file.copy(bytes, self.kind.item_bytes as usize)
    }
}

impl Pool {
    /// Creates an array of zeros with all its memory allocated; the name must be free. Its stripe unit is
    /// larger than the hint where the array would otherwise be mapped in too many pieces.
    pub fn create_array(
        &self,
        path: impl AsRef<[u8]>,
        kind: &ArrayType,
        hints: LayoutHints,
        mode: impl Into<NewMode>,
    ) -> Result<Array> {
        let (path, mode) = (path.as_ref(), mode.into());
        let options =
            OpenOptions { exclusive: true, mode, hints, named: kind.to_named(), ..OpenOptions::creating() };
        let file = File::open(self, path, &options, unit_for(kind.bytes()))?;
        if let Err(error) = file.allocate(kind.bytes()) {
            // The memory taken so far must not stay taken for an array that does not exist.
            drop(file);
            let _ = self.unlink(path);
            return Err(error);
        }
        Ok(Array { file, kind: kind.clone() })
    }

    /// Opens an array. With `expected`, one of another shape, type or order is refused.
    pub fn open_array(
        &self,
        path: impl AsRef<[u8]>,
        writable: bool,
        expected: Option<&ArrayType>,
    ) -> Result<Array> {
        let options = OpenOptions { write: writable, ..OpenOptions::reading() };
        let file = self.open(path, &options)?;
        let kind = ArrayType::from_named(file.named()).map_err(|error| file.tell(error))?;
        let Some(kind) = kind else {
            return Err(file.tell(invalid("it is a plain file, not an array".into())));
        };
        match expected {
            Some(expected) if *expected != kind => {
                Err(file.tell(invalid(format!("the array has {kind}, and {expected} was asked for"))))
            }
            _ => Ok(Array { file, kind }),
        }
    }
}

/// The smallest stripe unit with which this many bytes are mapped in a bounded number of pieces.
fn unit_for(bytes: u64) -> u64 {
    let least = bytes.div_ceil(limits::MAPPING_PIECES_MAX).next_power_of_two();
    least.clamp(limits::STRIPE_UNIT_BYTES_MIN, limits::STRIPE_UNIT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_come_back_from_their_attributes() {
        for (shape, dtype, order, bytes) in [
            (&[][..], "<f8", Order::C, 8),
            (&[0, 7], "|b1", Order::F, 0),
            (&[1000, 20], "<c16", Order::F, 320_000),
            (&[3], "|S5", Order::C, 15),
        ] {
            let kind = ArrayType::new(shape, dtype, order).unwrap();
            assert_eq!(kind.bytes(), bytes);
            assert_eq!(ArrayType::from_named(&kind.to_named()).unwrap().unwrap(), kind);
            assert!(kind.to_named().is_sorted());
        }
        assert_eq!(ArrayType::from_named(&Vec::new()).unwrap(), None);
    }

    #[test]
    fn types_that_make_no_sense_are_refused() {
        for dtype in
            ["", "f8", "<f", "<f0", "<f-8", "|O8", "<U4", "<M8[ns]", "<f8x", "é8", "<f99999999999999999999"]
        {
            assert_eq!(
                ArrayType::new(&[1], dtype, Order::C).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{dtype}"
            );
        }
        let error = ArrayType::new(&[1 << 40, 1 << 40], "<f8", Order::C).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooBig);
        assert!(ArrayType::new(&[1; 65], "<f8", Order::C).is_err());
        let mut named = ArrayType::new(&[2, 3], "<f8", Order::C).unwrap().to_named();
        named[2].1 = b"2,x".to_vec();
        assert_eq!(ArrayType::from_named(&named).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn units_keep_the_pieces_bounded() {
        for bytes in [0, 1, 1 << 20, 16 << 30, (16 << 30) + 1, 1 << 40] {
            let unit = unit_for(bytes);
            assert!(unit.is_power_of_two() && bytes.div_ceil(unit) <= limits::MAPPING_PIECES_MAX, "{bytes}");
        }
        assert_eq!(unit_for((16 << 30) + 1), 4 << 20);
    }
}
